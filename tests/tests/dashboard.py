"""Reads a dashboard as Grafana's own model does, and prints what the model has of it."""

import json
import sys

from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

plugins.register_default_plugins()
with open(sys.argv[1], encoding="utf-8") as file:
    dashboard = Dashboard.from_json(json.load(file))
print(JSONEncoder().encode(dashboard))
