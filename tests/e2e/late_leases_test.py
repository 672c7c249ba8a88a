# SPDX-License-Identifier: Apache-2.0
"""A donor has its memory back by the deadline: what all tests of this run together saw of it. A machine that runs more
processes than it has cores keeps one of them waiting now and then: a share of late ones is allowed, and as many as are asked
back together, which come late together."""
import pathlib

import pytest
from leasing import TakenBack

SHARE, TOGETHER = 0.02, 8  # about as many as a donor of these tests lends at once
LEAST = 30  # fewer say nothing of a share; a whole run has hundreds


def is_whole(session):
    """All tests that lend were to run, whatever came of them."""
    lending = {path for path in pathlib.Path(__file__).parent.glob("*_test.py") if "from leasing import" in path.read_text()}
    chosen = session.config.option.keyword or session.config.option.markexpr
    return not chosen and lending <= {item.path for item in session.items}


@pytest.mark.last
def test_few_leases_came_back_late(request):
    of, late = len(TakenBack.all), TakenBack.late()
    said = f"{of} leases in use were taken back, {len(late)} of them later than --revoke_deadline: {late} s"
    print(said)
    if of < LEAST and not is_whole(request.session):
        pytest.skip(f"{said}; a share of late ones wants {LEAST}")
    assert of >= LEAST
    assert len(late) <= max(TOGETHER, SHARE * of), said
