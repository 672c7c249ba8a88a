# SPDX-License-Identifier: Apache-2.0
"""The same tokens of SmolLM2 itself, whose chat engine has memory for two conversations and leases the rest.

The oracle is the same binary alone with enough memory: ids and log-probabilities, bit for bit. With --long 24
conversations of 6 turns in every case; else 4 of 3 turns in the case that has it all at once."""
import collections
import itertools
import threading
import time

import pytest
from conftest import SMOLLM2
from leasing import BLOCK_TOKENS, BOUND, Leasing, Talks, alone, storm

TOKEN_KIB = 22.5  # of KV in bf16
AGAIN = 50  # tokens that a storm makes a borrower compute again, at the least: without one there are none

Case = collections.namedtuple("Case", "donors borrowers stormy", defaults=[False])
EQUAL, OTHER = ((), ()), (("--kv_cache_dtype=f32",), ("--block_tokens=24",))  # donors' blocks beside the borrowers'
IN_PLACE, LSC = ("--stream=in_place",), ("--stream=lsc",)
SLOW = (*LSC, "--link_gbps=4", "--link_latency=100us")
CASES = {
    "lsc": Case(EQUAL[:1], [LSC]),
    "in_place": Case(EQUAL[:1], [IN_PLACE]),
    "donors_of_other_block_bytes": Case(OTHER, [IN_PLACE]),
    "two_borrowers": Case(EQUAL, [IN_PLACE, LSC]),
    "storm": Case(EQUAL, [IN_PLACE, LSC], stormy=True),
    "slow_link": Case(EQUAL[:1], [SLOW]),
    "all_at_once": Case(OTHER, [IN_PLACE, SLOW], stormy=True),
}


def pytest_generate_tests(metafunc):
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", CASES if metafunc.config.getoption("--long") else ["all_at_once"])


@pytest.fixture(scope="module")
def talks(binaries, tmp_path_factory, stubs, request):
    """Conversations, and what the model says alone with enough memory."""
    if not SMOLLM2.exists():
        pytest.skip(f"no model at {SMOLLM2}; deploy/fetch-model.sh fetches it, SWIFTCACHE_TEST_MODEL names it")
    many, turns = (24, 6) if request.config.getoption("--long") else (4, 3)
    with alone(binaries, tmp_path_factory.mktemp("alone"), stubs, "256MiB", SMOLLM2) as client:
        return Talks(seed=7, conversations=many, turns=turns, user_tokens=(16, 40), answer_tokens=8,
                     ids=(100, 40000)).learn(client, "chat")


def memory(talks, conversations):
    """The flag for room for so many conversations at their end."""
    tokens = max(len(talks.prompt(each, talks.turns[-1])) + talks.answer_tokens for each in talks.conversations)
    return f"--kv_cache_bytes={conversations * -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS * TOKEN_KIB:.0f}KiB"


@pytest.fixture
def leasing(binaries, tmp_path):
    made = Leasing(binaries, tmp_path, SMOLLM2)
    yield made
    made.cleanup()


def test_tokens_are_those_of_enough_memory(leasing, stubs, talks, case):
    donors = {f"donor{n}": flags for n, flags in enumerate(CASES[case].donors)}
    borrowers = {f"chat{n}": flags for n, flags in enumerate(CASES[case].borrowers)}
    leasing.begin()
    for name, flags in donors.items():
        leasing.engine(name, memory(talks, 3 * len(talks.conversations)), *flags)
    for name, flags in borrowers.items():
        leasing.engine(name, memory(talks, 2), *flags)
    leasing.ready(*donors, *borrowers)
    begin = time.monotonic()
    load = leasing.load(stubs, talks, *borrowers)
    if CASES[case].stormy:
        talk_in_a_storm(leasing, load, donors, borrowers)
    else:
        load.until(lambda: min(load.rounds.values()) > 0, "all turns of all conversations", BOUND)
        load.until(lambda: set(itertools.chain(*leasing.pairs())) == {*donors, *borrowers}, "everybody lends or leases")
    load.stop()
    found = {name: leasing.from_donors(name) for name in borrowers}
    print(f"{time.monotonic() - begin:.1f} s, {load.asked} answers; tokens found in leases: {found}, "
          f"computed again: {load.computed_again}")
    for name in borrowers:
        if CASES[case].stormy:
            assert found[name] > 0 and load.computed_again[name] >= AGAIN
        else:  # what it has no memory for lies in leases
            assert found[name] > 0 and load.computed_again[name] <= found[name] / 10
    leasing.finish()


def talk_in_a_storm(leasing, load, donors, borrowers):
    """All turns, until every borrower has leased of every donor (leases that nobody revokes may stay as they are), and has
    computed again what revocations took; and on without a storm until every one has found tokens in leases: on a busy
    machine a storm leaves nothing alone for long enough."""
    ending, revoked, seen = threading.Event(), [], set()

    def all_pairs():
        seen.update(leasing.pairs())
        return seen >= set(itertools.product(donors, borrowers))  # borrowers lend to each other, too

    operator = threading.Thread(target=storm, args=(leasing, 1, ending, revoked))
    operator.start()
    try:
        load.until(lambda: all_pairs() and min(load.rounds.values()) > 0 and sum(revoked) >= 10 and
                   min(load.computed_again.values()) >= AGAIN, "all turns and pairs in a storm", BOUND)
    finally:
        ending.set()
        operator.join()
    lost = [leasing.count(name, "swiftcache_lease_lost_total") for name in borrowers]
    print(f"{sum(revoked)} revocations by the operator; leases lost with what they held: {lost}")
    load.until(lambda: min(map(leasing.from_donors, borrowers)) > 0, "tokens found in leases")
