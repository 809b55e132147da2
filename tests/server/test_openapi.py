"""schemathesis over the OpenAPI document: no answer is a 500, none is undocumented."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import checks
from schemathesis.specs.openapi import checks as openapi_checks
from serving import Served, letters_lm, served

from bestk.server.app import create_app
from bestk.server.limits import Limits

# Other threads of this process draw numbers while a case is made.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)

# What a random body may ask for is kept small; that it is refused is what is looked at.
LIMITS = Limits(budget=300, new_tokens=30, seconds=2, frontier=500, children=50, k=20)
CHECKS = [
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_headers_conformance,
    openapi_checks.response_schema_conformance,
    openapi_checks.negative_data_rejection,
    openapi_checks.unsupported_method,
]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(letters_lm(), limits=LIMITS) as running:
        yield running


DOCUMENT = create_app({"letters": letters_lm()}, LIMITS).openapi()
OPERATIONS = [found.ok() for found in schemathesis.openapi.from_dict(DOCUMENT).get_all_operations()]


POSTS = [operation for operation in OPERATIONS if operation.method == "post"]
# With so little of a random body left, most searches run.
CORES: dict[str, dict[str, Any]] = {
    "/v1/search": {"prompt": "hello"},
    "/v1/completions": {"prompt": "hello"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/responses": {"input": "hello"},
}
SMALL = {"beam_size": 3, "max_new_tokens": 5, "k": 2}


def run(max_examples: int) -> Any:
    return settings(
        max_examples=max_examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
    )


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_every_answer_is_documented(operation: Any, mode: Any, server: Served) -> None:
    @run(15 if operation.method == "post" else 4)
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        case.call_and_validate(base_url=server.url, checks=CHECKS, timeout=60)

    try:
        check()
    except Unsatisfiable:
        pytest.skip("this operation takes nothing that could be wrong")


@pytest.mark.parametrize(
    "operation", [o for o in POSTS if o.path in CORES], ids=lambda operation: operation.label
)
def test_searches_with_a_few_random_settings(operation: Any, server: Served) -> None:
    statuses: Counter[int] = Counter()
    body = DOCUMENT["paths"][operation.path]["post"]["requestBody"]["content"]["application/json"]
    fields = sorted(
        DOCUMENT["components"]["schemas"][body["schema"]["$ref"].split("/")[-1]]["properties"]
    )

    @run(30)
    @given(case=operation.as_strategy(), kept=st.sets(st.sampled_from(fields), max_size=2))
    def check(case: Any, kept: set[str]) -> None:
        random_part = {name: value for name, value in case.body.items() if name in kept}
        case.body = SMALL | random_part | CORES[operation.path]
        answer = case.call_and_validate(base_url=server.url, checks=CHECKS, timeout=60)
        statuses[answer.status_code] += 1

    check()
    assert statuses[200] >= 5, statuses
