#!/usr/bin/python3 -IS
"""An IPAM plugin for the tests of `podplane cni verify`.

Its file name is a list of switches, as in `ipam,late,keeps`. Without a switch it takes `ranges` as
host-local does, answers GC and STATUS, and keeps a JSON file in `dataDir`.

Habits, which are correct:
  pool   takes a list of addresses, `ipam.pool`, knows no other key of ranges, and answers with /32
  no-gc  supports CNI 1.0.0 at most, takes `subnet` alone, refuses a repeated ADD
  late   prints the result before it commits what it has saved, with time for a SIGKILL between

Faults: see FAULTS.
"""

import contextlib
import fcntl
import ipaddress
import json
import os
import re
import sys
import time

FAULTS = {
    "shares": "gives one address to two attachments",
    "keeps": "DEL frees nothing",
    "greedy-del": "DEL frees all interfaces of the container",
    "strict-del": "DEL of an unknown attachment fails",
    "half-add": "an ADD that fails keeps what it has of other ranges",
    "blind-check": "CHECK succeeds without an attachment",
    "idle-gc": "GC does nothing",
    "wild-gc": "GC without a list frees everything",
    "no-lock": "calls at the same time overwrite each other's changes",
    "moves": "a repeated ADD gives another address",
    "in-place": "writes over what it has saved, so that a SIGKILL leaves half of it",
    "forgets": "the same, and takes what it cannot read for nothing",
}
HABITS = {"pool", "no-gc", "late"}
ON = set(os.path.basename(sys.argv[0]).split(",")[1:])
assert ON <= HABITS | set(FAULTS), ON

VERSIONS = ["0.3.1", "0.4.0", "1.0.0"] + ([] if "no-gc" in ON else ["1.1.0"])
COMMANDS = ["ADD", "DEL", "CHECK"] + ([] if "no-gc" in ON else ["GC", "STATUS"])


class Failed(Exception):
    def __init__(self, code, msg):
        super().__init__(msg)
        self.code = code


def invalid(value, what):
    return Failed(7, f"invalid {what}: {json.dumps(value)}")


def typed(value, kind, what):
    if not isinstance(value, kind):
        raise invalid(value, what)
    return value


class Range:
    """A subnet, the first and the last address that it gives, and its gateway."""

    def __init__(self, config):
        typed(config, dict, "range")
        try:
            self.subnet = ipaddress.ip_network(typed(config.get("subnet"), str, "subnet"))
            address = lambda key: config.get(key) and ipaddress.ip_address(config[key])
            start, end, gateway = (address(key) for key in ("rangeStart", "rangeEnd", "gateway"))
        except ValueError as error:
            raise invalid(config, str(error)) from None
        first, last = self.subnet[0] + 1, self.subnet[-1] - (self.subnet.version == 4)
        if self.subnet.num_addresses < 4 or any(ip and ip not in self.subnet for ip in (start, end, gateway)):
            raise invalid(config, "range")
        self.gateway = gateway or first
        self.start, self.end = max(start or first, first), min(end or last, last)
        if self.start > self.end:
            raise invalid(config, "range")

    def addresses(self):
        for number in range(int(self.start), int(self.end) + 1):
            ip = type(self.start)(number)
            if ip != self.gateway:
                yield str(ip)

    def entry(self, ip):
        return {"address": f"{ip}/{self.subnet.prefixlen}", "gateway": str(self.gateway)}


class Pool:
    """A list of addresses."""

    def __init__(self, pool):
        self.pool = [typed(ip, str, "pool") for ip in typed(pool, list, "pool")]

    def addresses(self):
        return self.pool

    def entry(self, ip):
        return {"address": f"{ip}/32"}


def range_sets(ipam):
    """The sets of ranges, of which an attachment gets an address each."""
    if "pool" in ON:
        return [[Pool(ipam.get("pool"))]]
    if "no-gc" in ON:
        return [[Range({"subnet": ipam.get("subnet")})]]
    sets = typed(ipam.get("ranges"), list, "ranges")
    sets = [[Range(each) for each in typed(ranges, list, "ranges")] for ranges in sets]
    if not sets or not all(sets):
        raise invalid(ipam["ranges"], "ranges")
    return sets


@contextlib.contextmanager
def books(config):
    """Who holds which address. Yields the books, and a function that commits what was changed."""
    ipam = typed(config.get("ipam"), dict, "ipam")
    directory = os.path.join(typed(ipam.get("dataDir"), str, "dataDir"), config["name"])
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, "books.json")
    with open(os.path.join(directory, "lock"), "w") as lock:
        if "no-lock" not in ON:
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            with open(path) as file:
                held = json.load(file)
        except FileNotFoundError:
            held = {}
        except ValueError:
            if "forgets" not in ON:
                raise
            held = {}
        if "no-lock" in ON:
            time.sleep(0.02)

        def save():
            """Writes all that can fail for a full disk; what it returns makes it count."""
            text = json.dumps(held)

            def write():
                with open(path, "w") as file:
                    file.write(text)

            if ON & {"in-place", "forgets"}:
                return write
            new = f"{path}.{os.getpid()}" if "no-lock" in ON else path + ".new"
            with open(new, "w") as file:
                file.write(text)
            return lambda: os.replace(new, path)

        yield held, save


def holder():
    return f"{os.environ['CNI_CONTAINERID']}/{os.environ['CNI_IFNAME']}"


def add(config):
    sets = range_sets(typed(config.get("ipam"), dict, "ipam"))
    me = holder()
    with books(config) as (held, save):
        mine = [ip for ip, owner in held.items() if owner == me]
        if mine and "no-gc" in ON:
            raise Failed(102, f"{me} has {', '.join(mine)} already")
        given = []
        for ranges in sets:
            offered = [(each, ip) for each in ranges for ip in each.addresses()]
            own = [] if "moves" in ON else [pair for pair in offered if pair[1] in mine]
            free = [pair for pair in offered if pair[1] not in held]
            if "shares" in ON and not free:
                free = offered
            found = next(iter(own + free), None)
            if not found:
                if "half-add" in ON:
                    save()()
                raise Failed(100, "no address is free")
            given.append(found)
            held[found[1]] = me
        ips = [each.entry(ip) for each, ip in given]
        if config["cniVersion"] < "1.0.0":
            for entry in ips:
                entry["version"] = "6" if ":" in entry["address"] else "4"
        result = {"cniVersion": config["cniVersion"], "ips": ips}
        commit = save()
        if "late" in ON:
            print(json.dumps(result), flush=True)
            time.sleep(0.01)
        commit()
        return None if "late" in ON else result


def delete(config):
    me = holder()
    with books(config) as (held, save):
        same = lambda owner: owner.split("/")[0] == me.split("/")[0] if "greedy-del" in ON else owner == me
        mine = [ip for ip, owner in held.items() if same(owner)]
        if not mine and "strict-del" in ON:
            raise Failed(103, f"{me} has no address")
        if mine and "keeps" not in ON:
            for ip in mine:
                del held[ip]
            save()()


def check(config):
    with books(config) as (held, _):
        if holder() not in held.values() and "blind-check" not in ON:
            raise Failed(101, f"{holder()} has no address")


def collect(config):
    valid = config.get("cni.dev/valid-attachments")
    if valid is None and "wild-gc" in ON:
        valid = []
    if valid is None or "idle-gc" in ON:
        return
    valid = {f"{each['containerID']}/{each['ifname']}" for each in valid}
    with books(config) as (held, save):
        for ip in [ip for ip, owner in held.items() if owner not in valid]:
            del held[ip]
        save()()


def status(config):
    sets = range_sets(typed(config.get("ipam"), dict, "ipam"))
    with books(config) as (held, _):
        for ranges in sets:
            if all(ip in held for each in ranges for ip in each.addresses()):
                raise Failed(50, "no address is free")


def environment(command):
    """The variables that the command needs, each of its form."""
    forms = {"CNI_CONTAINERID": r"[A-Za-z0-9][A-Za-z0-9_.\-]*", "CNI_IFNAME": r"(?!\.\.?$)[^\s/:]{1,15}", "CNI_NETNS": r".+"}
    needed = {"ADD": forms, "CHECK": forms, "DEL": ["CNI_CONTAINERID", "CNI_IFNAME"]}
    for name in needed.get(command, []):
        if not re.fullmatch(forms[name], os.environ.get(name, "")):
            raise Failed(4, f"{name} is missing or invalid")


def main():
    command = os.environ.get("CNI_COMMAND", "")
    try:
        config = json.load(sys.stdin)
    except (ValueError, RecursionError) as error:
        raise Failed(6, f"failed to decode the configuration: {error}") from None
    if not isinstance(config, dict):
        raise Failed(6, "the configuration is not an object")
    if command == "VERSION":
        return {"cniVersion": config.get("cniVersion", "1.0.0"), "supportedVersions": VERSIONS}
    if command not in COMMANDS:
        raise Failed(4, f"unknown CNI_COMMAND {command}")
    environment(command)
    if config.get("cniVersion") not in VERSIONS:
        raise Failed(1, f"incompatible cniVersion {config.get('cniVersion')}")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.\-]*", str(config.get("name") or "")):
        raise invalid(config.get("name"), "name")
    return {"ADD": add, "DEL": delete, "CHECK": check, "GC": collect, "STATUS": status}[command](config)


try:
    answer = main()
except Failed as failed:
    answer = {"cniVersion": "1.0.0", "code": failed.code, "msg": str(failed)}
except (OSError, ValueError) as error:
    answer = {"cniVersion": "1.0.0", "code": 5, "msg": str(error)}
if answer:
    print(json.dumps(answer))
sys.exit(1 if answer and "code" in answer else 0)
