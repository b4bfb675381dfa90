"""Prints the bill of materials of the program, in CycloneDX: `sbom.py TARGET`, in the root of the repository.

It names the crates that a program for this target is made of, as Cargo.lock has them.
"""

import json
import os
import subprocess
import sys
import time
import tomllib
import uuid


def main():
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", sys.argv[1]]
    metadata = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    built, root = crates(sys.argv[1]), metadata["resolve"]["root"]
    packages = {p["id"]: p for p in metadata["packages"] if (p["name"], f"v{p['version']}") in built}
    needs = {
        node["id"]: sorted(
            need["pkg"] for need in node["deps"]
            if need["pkg"] in packages and any(kind["kind"] != "dev" for kind in need["dep_kinds"])
        )
        for node in metadata["resolve"]["nodes"]
    }
    with open("Cargo.lock", "rb") as file:
        sums = {(p["name"], p["version"]): p.get("checksum") for p in tomllib.load(file)["package"]}
    components = {package: component(packages[package], sums) for package in sorted(packages)}
    # The same for the same crates.
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([*components.values()]))
    when = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())))
    bill = {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "serialNumber": serial.urn,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", when),
            "component": {**components[root], "type": "application"},
        },
        "components": [each for package, each in components.items() if package != root],
        "dependencies": [
            {"ref": components[package]["bom-ref"], "dependsOn": [components[need]["bom-ref"] for need in needs[package]]}
            for package in components
        ],
    }
    json.dump(bill, sys.stdout, indent=1)
    print()


def crates(target):
    """Names and versions. The metadata also has what only the features need that tests turn on."""
    command = ["cargo", "tree", "--locked", "--package", "waterwheel", "--edges", "normal,build", "--target", target,
               "--prefix", "none", "--format", "{p}"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return {tuple(line.split()[:2]) for line in lines if line}


def component(package, sums):
    name, version = package["name"], package["version"]
    purl = f"pkg:cargo/{name}@{version}"
    found = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if package["license"]:
        # The old form of the crates, "A/B".
        found["licenses"] = [{"expression": " ".join(package["license"].replace("/", " OR ").split())}]
    if checksum := sums[name, version]:
        found["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return found


main()
