"""Whether the document about calls by JSON is one of OpenAPI, and whether answers are as it says."""

import json
import subprocess
import urllib.request

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from service import PROGRAM, ROOMY, Service


def fetch(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def service():
    with Service("server.json = true\n" + ROOMY) as service:
        yield service


def test_the_documents_are_valid(service):
    printed = subprocess.run([PROGRAM, "proto", "--openapi"], check=True, capture_output=True).stdout
    served = [fetch(f"http://{address}/openapi.json") for address in (service.address, service.ops_address)]
    for document in [json.loads(printed), *served]:
        assert document["openapi"].startswith("3.1")
        validate(document)


def test_an_answer_is_as_its_document_says(service):
    document = fetch(f"http://{service.address}/openapi.json")
    path = "/waterwheel.v1.WorkerPoolService/Stats"
    schema = document["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    # Without other fields, so that a wrong name is a fault.
    for message in document["components"]["schemas"].values():
        message.setdefault("additionalProperties", message["type"] != "object")
    answer = fetch(f"http://{service.address}{path}", {})
    assert answer["stats"]["pools"]
    Draft202012Validator({**schema, "components": document["components"]}).validate(answer)
