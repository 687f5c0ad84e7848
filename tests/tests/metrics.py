"""Reads metrics with the parser of Prometheus' own client, and prints each family's type, labels and number of samples as JSON.

    metrics.py URL PKI      PKI has ca.crt and admin.pem, for a URL with https
"""

import json
import ssl
import sys
import urllib.request

from prometheus_client.openmetrics.parser import text_string_to_metric_families

WANTED = "application/openmetrics-text"

url, pki = sys.argv[1:]
context = None
if url.startswith("https:"):
    context = ssl.create_default_context(cafile=f"{pki}/ca.crt")
    context.load_cert_chain(f"{pki}/admin.pem")
families = {}
with urllib.request.urlopen(url, timeout=10, context=context) as answer:
    assert answer.headers["Content-Type"].startswith(WANTED), answer.headers
    text = answer.read().decode()
for family in text_string_to_metric_families(text):
    assert family.name not in families, f"{family.name} is there twice"
    labels = sorted({label for sample in family.samples for label in sample.labels})
    families[family.name] = {
        "type": family.type,
        "help": family.documentation,
        "labels": labels,
        "samples": len(family.samples),
        "sum": sum(sample.value for sample in family.samples if sample.name.endswith(("_total", "_count")) or sample.name == family.name),
    }
json.dump(families, sys.stdout)
