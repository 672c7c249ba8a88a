# SPDX-License-Identifier: Apache-2.0
"""KV memory on lease between real engines: the same tokens whatever donors, borrowers and the broker do.

The oracle is the same model served alone with enough memory: ids and log-probabilities, bit for bit. With --long every
fault strikes 20 times, each time at another moment."""
import itertools
import random
import signal
import threading
import time

import grpc
import pytest
from conftest import wait_until
from leasing import (ARENA, BLOCK_TOKENS, BOUND, DONOR, LONG_TALK, PATIENT, RECLAIM, WAIT, Client, Leasing, half_lent_to,  # noqa: F401
                     hits, leasing, needs_ended, needs_met, pytest_generate_tests, storm, talks)

SMALL, SMALL_BLOCKS = "--kv_cache_bytes=256KiB", 16
UNMAP = 10  # seconds until a dead donor's memory is unmapped: one is promised, the rest is a loaded machine's


@pytest.fixture(scope="module", autouse=True)
def starving(binaries, tmp_path_factory, stubs, talks):
    """A cluster without donors, and the refusals of the long prompt, by model: the one that may lease waits for leases
    ten seconds, while other tests run."""
    cluster, refusals, threads = Leasing(binaries, tmp_path_factory.mktemp("starving")), {}, []

    def ask(model):
        try:
            refusals[model] = (grpc.StatusCode.OK, f"{client.ask(model, talks.long_prompt, talks.answer_tokens)}")
        except grpc.RpcError as error:
            refusals[model] = (error.code(), error.details())

    try:
        cluster.begin()
        cluster.engine("lone", SMALL, "--transport=none")
        cluster.engine("chat", SMALL)
        cluster.ready("lone", "chat")
        client = Client(cluster.gateway.grpc, stubs)
        for model in ("lone", "chat"):
            threads.append(threading.Thread(target=ask, args=(model,)))
            threads[-1].start()
        yield cluster, refusals
    finally:
        cluster.cleanup()
        for thread in threads:
            thread.join(150)
    client.close()


def test_tokens_are_those_of_enough_memory(leasing, stubs, talks):
    """In place, layer by layer, over a slow link; of two donors whose blocks have other sizes."""
    leasing.begin()
    leasing.engine("donor", DONOR, "--kv_cache_dtype=f32")
    leasing.engine("donor2", DONOR, "--block_tokens=24")
    leasing.engine("in_place", ARENA, "--stream=in_place")
    leasing.engine("lsc", ARENA, "--stream=lsc")
    leasing.engine("throttled", ARENA, "--stream=lsc", "--link_gbps=4", "--link_latency=100us")
    borrowers = "in_place", "lsc", "throttled"
    leasing.ready(*borrowers)
    load = leasing.load(stubs, talks, *borrowers, clients=2).until(hits(leasing, *borrowers), "hits in leases")
    load.until(lambda: set(itertools.chain(*leasing.pairs())) >= {"donor", "donor2", *borrowers}, "both lend, and all lease")
    load.until(hits(leasing, *borrowers), "more hits").stop()
    loaded = {name: leasing.count(name, "swiftcache_kv_transfer_bytes_total", direction="load") for name in borrowers}
    assert loaded["in_place"] == 0 < min(loaded["lsc"], loaded["throttled"]), loaded
    leasing.finish()


def test_tokens_are_the_same_in_a_storm_of_revocations(leasing, stubs, talks, seed):
    """Two borrowers of two donors, one of which is at work too and wants memory back for itself."""
    leasing.begin()
    leasing.engine("donor", DONOR)
    leasing.engine("donor2", "--kv_cache_bytes=2MiB")
    leasing.engine("in_place", ARENA, "--stream=in_place")
    leasing.engine("lsc", ARENA, "--stream=lsc")
    leasing.ready("donor2", "in_place", "lsc")
    load = leasing.load(stubs, talks, "in_place", "lsc", clients=2).until(hits(leasing, "in_place", "lsc"), "hits in leases")
    load.until(lambda: leasing.blocks("donor2", "leased_out") > 32, "donor2 lends while it is idle")
    own = leasing.load(stubs, talks, "donor2", clients=2)
    own.until(lambda: leasing.count("donor2", "swiftcache_scale_up_total") > 0, "it needs what it has lent")
    quiet = dict(load.computed_again)
    ending, revoked = threading.Event(), []
    operator = threading.Thread(target=storm, args=(leasing, seed, ending, revoked))
    operator.start()
    enough = hits(leasing, "in_place", "lsc", tokens=1000)

    def again():
        return [load.computed_again[name] - quiet[name] for name in ("in_place", "lsc")]

    def asked_back():
        return leasing.count("donor", "swiftcache_lease_revoked_total"), leasing.count("donor2", "swiftcache_scale_up_total")

    try:
        load.until(lambda: sum(revoked) >= 10 and min(again()) >= 100 and min(asked_back()) > 0,
                   "revocations by the operator, which cost borrowers tokens", BOUND)
    finally:
        ending.set()
        operator.join()
    print(f"{load.asked} answers, {sum(revoked)} revocations by the operator, (revocations of donor, needs of donor2): "
          f"{asked_back()}, tokens computed again: {again()}")
    load.until(enough, "hits all the same").stop()  # a busy machine may have none before the storm is over
    own.stop()
    leasing.finish()


def lease_all(leasing, stubs, talks, name):
    """All conversations' last turns twice: then `name` finds nearly all of them, and most of it in leases."""
    client, turn = Client(leasing.gateway.grpc, stubs), talks.turns[-1]

    def all_found():
        before, prompts = leasing.computed(name), 0
        for conversation in talks.conversations:
            prompts += len(talks.prompt(conversation, turn))
            assert client.ask(name, talks.prompt(conversation, turn), talks.answer_tokens) == \
                talks.answers[conversation][turn]
        return leasing.computed(name) - before <= prompts // 4
    wait_until(all_found, WAIT, f"{name} has all conversations")
    client.close()


def ask_again(leasing, stubs, talks, name):
    """The same once more; how many of the prompts' tokens had to be computed."""
    client, before = Client(leasing.gateway.grpc, stubs), leasing.computed(name)
    for conversation in talks.conversations:
        assert client.ask(name, talks.prompt(conversation, talks.turns[-1]), talks.answer_tokens) == \
            talks.answers[conversation][talks.turns[-1]]
    client.close()
    return leasing.computed(name) - before


def test_what_a_killed_donor_held_is_unmapped_and_computed_again(leasing, stubs, talks, seed):
    rng = random.Random(seed)
    leasing.begin()
    donor = leasing.engine("donor", DONOR)
    leasing.engine("chat", ARENA, "--stream=" + rng.choice(["in_place", "lsc"]))
    leasing.ready("chat")
    lease_all(leasing, stubs, talks, "chat")
    held = leasing.count("chat", "swiftcache_kv_leased_in_used_blocks")
    before = leasing.from_donors("chat")
    few = ask_again(leasing, stubs, talks, "chat")
    assert leasing.from_donors("chat") > before
    assert leasing.foreign_mappings("chat") > 0
    time.sleep(rng.uniform(0, 0.5))  # at another moment between two heartbeats
    begin = time.monotonic()
    donor.kill()
    wait_until(lambda: leasing.foreign_mappings("chat") == 0, UNMAP, "its memory is unmapped")
    print(f"unmapped {time.monotonic() - begin:.3f} s after the kill")
    wait_until(lambda: leasing.blocks("chat", "leased_in") == 0, UNMAP, "the lost leases are out of use")
    many = ask_again(leasing, stubs, talks, "chat")
    print(f"computed {few:.0f} tokens with the donor, {many:.0f} after its death; it held {held:.0f} blocks")
    assert held > 48 and many > few + held * BLOCK_TOKENS // 2
    assert leasing.count("chat", "swiftcache_lease_lost_total") > 0
    leasing.engine("donor", DONOR).wait_healthy()
    lease_all(leasing, stubs, talks, "chat")
    assert leasing.blocks("donor", "leased_out") > 0
    leasing.finish()


def test_a_donor_that_ends_in_order_has_its_leases_given_back(leasing, stubs, talks):
    leasing.begin()
    donor = leasing.engine("donor", DONOR, "--revoke_deadline=5s")  # for a loaded machine too
    leasing.engine("chat", ARENA)
    leasing.ready("chat")
    lease_all(leasing, stubs, talks, "chat")
    assert donor.stop() == 0
    wait_until(lambda: leasing.blocks("chat", "leased_in") == 0, WAIT, "nothing is on lease")
    assert leasing.count("chat", "swiftcache_lease_lost_total") == 0
    assert "was fenced" not in donor.text()
    ask_again(leasing, stubs, talks, "chat")
    leasing.finish()


def test_a_donor_is_killed_and_another_is_restarted_under_its_name(leasing, stubs, talks, seed):
    rng = random.Random(seed)
    leasing.begin()
    for name in ("donor", "donor2"):
        leasing.engine(name, DONOR)
    leasing.engine("chat", ARENA, "--stream=" + rng.choice(["in_place", "lsc"]))
    leasing.ready("chat")
    load = leasing.load(stubs, talks, "chat").until(hits(leasing, "chat"), "hits in leases")
    load.until(lambda: {donor for _, _, donor, _ in leasing.leases()} == {"donor", "donor2"}, "leases of both donors")
    for victim, kill in zip(rng.sample(["donor", "donor2"], 2), rng.sample([True, False], 2)):
        load.answered(rng.randrange(1, 30))
        print(f"{victim} is {'killed' if kill else 'ended'} after {load.asked} answers")
        if kill:
            leasing.engines[victim].kill()
        else:
            assert leasing.engines[victim].stop() == 0
        load.answered(20)
        leasing.engine(victim, DONOR).wait_healthy()
        load.until(lambda: leasing.blocks(victim, "leased_out") > 0, f"the new {victim} lends")
        load.until(hits(leasing, "chat"), "hits in leases again")
    load.stop()
    leasing.finish()


def test_the_broker_is_killed_and_comes_back(leasing, stubs, talks, seed):
    rng = random.Random(seed)
    leasing.begin()
    leasing.engine("donor", DONOR)
    leasing.engine("chat", ARENA)
    leasing.ready("chat")
    load = leasing.load(stubs, talks, "chat").until(hits(leasing, "chat"), "hits in leases").answered(rng.randrange(30))
    where = {"listen": leasing.broker.grpc, "http": leasing.broker.http}
    print(f"the broker is killed after {load.asked} answers")
    leasing.broker.kill()
    lost = leasing.count("chat", "swiftcache_lease_lost_total")
    load.until(hits(leasing, "chat"), "hits in leases without a broker")
    assert leasing.count("chat", "swiftcache_lease_lost_total") == lost
    assert leasing.blocks("chat", "leased_in") > 0
    leasing.start_broker(*leasing.broker_flags, **where)

    def known():
        return set(leasing.granted())

    load.until(known, "the new broker knows the leases that live")
    for lease in (old := known()):
        leasing.ctl("lease", "revoke", lease, check=False)  # it may have ended meanwhile
    load.until(lambda: known() - old, "there are new leases")
    load.until(hits(leasing, "chat"), "hits in leases again").stop()
    leasing.finish()


def stop_a_donor(leasing, stubs, talks, rng, *flags):
    """The only donor, and the load of the borrower that it left alone at some moment."""
    leasing.begin(*flags)
    donor = leasing.engine("donor", DONOR)
    leasing.engine("chat", ARENA, "--stream=" + rng.choice(["in_place", "lsc"]))
    leasing.ready("chat")
    load = leasing.load(stubs, talks, "chat").until(hits(leasing, "chat"), "hits in leases").answered(rng.randrange(30))
    print(f"the donor stands still after {load.asked} answers")
    donor.child.send_signal(signal.SIGSTOP)
    return donor, load


def test_a_donor_stands_still_past_every_deadline(leasing, stubs, talks, seed):
    rng = random.Random(seed)
    donor, load = stop_a_donor(leasing, stubs, talks, rng, "--lease_ttl=1s")
    load.until(lambda: leasing.blocks("chat", "leased_in") == 0, "its leases ended, lost or left as it is silent")
    load.until(lambda: leasing.leases() == [], "the broker has given them up")
    load.answered(rng.randrange(10, 30))
    donor.child.send_signal(signal.SIGCONT)
    load.until(hits(leasing, "chat"), "hits in leases again").stop()
    leasing.finish()


def test_a_donor_that_stands_still_does_not_hold_up_its_borrowers_clients(leasing, stubs, talks, seed):
    """Though nobody but its borrower can tell: the broker takes nobody for dead, and leases live for a minute."""
    donor, load = stop_a_donor(leasing, stubs, talks, random.Random(seed), "--lease_ttl=60s", PATIENT)
    stopped = time.monotonic()
    load.until(lambda: leasing.blocks("chat", "leased_in") == 0, "its leases count as lost").answered(30)
    took = time.monotonic() - stopped
    donor.child.send_signal(signal.SIGCONT)
    assert took < 20
    load.until(hits(leasing, "chat"), "hits in leases again").stop()
    leasing.finish()


def test_a_donor_has_its_memory_back_though_the_borrower_stands_still(leasing, stubs, talks, seed):
    rng = random.Random(seed)
    leasing.begin("--lease_ttl=6s", PATIENT)  # time for a revocation before leases end by themselves
    leasing.engine("donor", DONOR)
    chat = leasing.engine("chat", ARENA, "--stream=" + rng.choice(["in_place", "lsc"]))
    leasing.ready("chat")
    load = leasing.load(stubs, talks, "chat").until(hits(leasing, "chat"), "hits in leases").answered(rng.randrange(30))
    load.until(lambda: len(leasing.leases()) > 1, "several leases")
    print(f"the borrower stands still after {load.asked} answers")
    chat.child.send_signal(signal.SIGSTOP)
    lent, fenced = leasing.blocks("donor", "leased_out"), leasing.count("donor", "swiftcache_lease_fenced_total")
    # Oldest first: the latest may not be open yet, and then it comes back at once.
    active = sorted(leasing.granted(), key=int)
    assert any(leasing.ctl("lease", "revoke", lease, check=False).returncode == 0 for lease in active), active
    wait_until(lambda: leasing.blocks("donor", "leased_out") < lent, WAIT, "what was revoked is back")
    wait_until(lambda: leasing.blocks("donor", "leased_out") == 0, WAIT, "what was not renewed is back")
    assert leasing.count("donor", "swiftcache_lease_fenced_total") > fenced
    reclaims = leasing.count("donor", "swiftcache_reclaim_seconds_count")
    assert 0 < reclaims == leasing.count("donor", "swiftcache_reclaim_seconds_bucket", le=f"{RECLAIM}")
    chat.child.send_signal(signal.SIGCONT)
    load.until(hits(leasing, "chat"), "hits in leases again").stop()
    leasing.finish()


def test_a_donor_has_its_memory_back_though_the_broker_answers_late(leasing, stubs, talks):
    """Whose lease is to go, of two borrowers', is the broker's to say; what it says after a second, nobody waits for."""
    leasing.begin()
    donor = leasing.engine("donor", "--kv_cache_bytes=2MiB", "--revoke_deadline=1s", leasing.wire())
    leasing.ready("donor")
    client, prompt = Client(leasing.gateway.grpc, stubs), talks.long_prompt[:1500]  # three quarters of its arena
    wanted = client.ask("donor", prompt, talks.answer_tokens)
    for name in ("chat", "chat2"):
        leasing.engine(name, ARENA)
    leasing.ready("chat", "chat2")
    load = leasing.load(stubs, talks, "chat", "chat2", clients=1)

    def needed():
        return leasing.count("donor", "swiftcache_scale_up_total")

    for round in range(3):
        load.until(half_lent_to(leasing, "chat", "chat2"), "it lends to both, and nearly half of what it has", BOUND)
        leasing.wires[0].answers_after = 1
        before, ended = needed(), needs_ended(donor)
        assert client.ask("donor", prompt, talks.answer_tokens, salt=f"{round}") == wanted
        leasing.wires[0].answers_after = 0
        assert needed() > before
        wait_until(lambda: needs_ended(donor) > ended, WAIT, "its log tells how long it waited for memory")
    load.stop()
    took = [back + taken for back, taken in needs_met(donor)]
    print(f"the donor had its memory after {' '.join(f'{seconds:.3f}' for seconds in took)} s")
    assert took and max(took) < 1  # what waits for the broker takes a second by that alone
    assert leasing.count("donor", "swiftcache_reclaim_seconds_count") >= 3
    assert leasing.count("donor", "swiftcache_lease_late_total") == 0, donor.text()
    client.close()
    leasing.finish()


class LongAnswers:
    """Answers under way at once, each asked for a second time if the first ends with an error: at once, or when `again`
    is set."""

    def __init__(self, cluster, stubs, talks, at_once=True):
        self.again = threading.Event()
        if at_once:
            self.again.set()
        self.client = Client(cluster.gateway.grpc, stubs)
        self.begun, self.answers, self.errors = set(), {}, {}
        self.threads = [threading.Thread(target=self._ask, args=(number, talks.users[number][0]))
                        for number in range(len(talks.long_answers))]
        for thread in self.threads:
            thread.start()
        wait_until(lambda: len(self.begun) == len(self.threads), WAIT, "all answers have begun")

    def _ask(self, number, prompt):
        for _ in range(2):
            try:
                self.answers[number] = self.client.ask("chat", prompt, LONG_TALK, begun=lambda: self.begun.add(number))
                return
            except grpc.RpcError as error:
                self.errors.setdefault(number, []).append((error.code(), error.details()))
                self.again.wait(WAIT)

    def join(self):
        for thread in self.threads:
            thread.join(150)
            assert not thread.is_alive(), "an answer does not end"
        self.client.close()
        print(self.errors)
        return self


def test_clients_of_a_killed_borrower_see_one_error_and_their_second_try_the_same_tokens(leasing, stubs, talks, seed):
    rng = random.Random(seed)
    leasing.begin()
    leasing.engine("donor", DONOR)
    for name in ("chat1", "chat2"):
        leasing.engine(name, ARENA, model_name="chat")
    leasing.ready("chat")

    def errors_of_a_kill():
        victim = rng.choice(["chat1", "chat2"])
        long_answers = LongAnswers(leasing, stubs, talks)
        leasing.engines[victim].kill()
        long_answers.join()
        for (code, details), *more in long_answers.errors.values():
            assert code == grpc.StatusCode.UNAVAILABLE and "was lost after" in details and more == []
        assert long_answers.answers == dict(enumerate(talks.long_answers))
        wait_until(lambda: not any(lease[3] == victim for lease in leasing.leases()), WAIT, "its leases end")
        leasing.engine(victim, ARENA, model_name="chat").wait_healthy()  # its socket is replaced
        return long_answers.errors

    wait_until(errors_of_a_kill, WAIT, "the victim was still at work when it was killed")
    leasing.load(stubs, talks, "chat").until(hits(leasing, "chat1", "chat2"), "hits of both in leases").stop()
    leasing.finish()


def test_clients_of_a_killed_gateway_see_one_error_and_their_second_try_the_same_tokens(leasing, stubs, talks, seed):
    rng = random.Random(seed)
    leasing.begin()
    leasing.engine("donor", DONOR)
    leasing.engine("chat", ARENA, "--stream=" + rng.choice(["in_place", "lsc"]))
    leasing.ready("chat")
    leasing.load(stubs, talks, "chat").until(hits(leasing, "chat"), "hits in leases").stop()

    def errors_of_a_kill():
        long_answers = LongAnswers(leasing, stubs, talks, at_once=False)
        time.sleep(rng.uniform(0, 0.2))
        leasing.gateway.kill()
        wait_until(lambda: leasing.blocks("chat", "used") == 0, WAIT, "what was under way is given up")
        assert leasing.blocks("chat", "leased_in") > 0 and leasing.granted()
        leasing.start_gateway(listen=leasing.gateway.grpc)
        leasing.wait_models("chat")
        long_answers.again.set()
        long_answers.join()
        for (code, _), *more in long_answers.errors.values():
            assert code == grpc.StatusCode.UNAVAILABLE and more == []
        assert long_answers.answers == dict(enumerate(talks.long_answers))
        return long_answers.errors

    wait_until(errors_of_a_kill, WAIT, "the gateway was at work when it was killed")
    leasing.load(stubs, talks, "chat").until(hits(leasing, "chat"), "hits in leases again").stop()
    assert leasing.count("chat", "swiftcache_lease_lost_total") == 0
    leasing.finish()


@pytest.mark.parametrize("stream", ["in_place", "lsc"])
def test_a_prompt_of_seven_times_the_own_arena_is_served_with_donors(leasing, stubs, talks, stream):
    assert len(talks.long_prompt) >= 7 * SMALL_BLOCKS * BLOCK_TOKENS
    leasing.begin()
    leasing.engine("donor", DONOR)
    leasing.engine("chat", SMALL, f"--stream={stream}")
    leasing.ready("chat")
    client = Client(leasing.gateway.grpc, stubs)
    assert client.ask("chat", talks.long_prompt, talks.answer_tokens) == talks.long_prompt_answer
    assert leasing.blocks("chat", "leased_in") >= 6 * SMALL_BLOCKS
    client.close()
    leasing.finish()


@pytest.mark.parametrize("model, why", [("lone", "max_model_len is 256 tokens"), ("chat", "raise --kv_cache_bytes")])
def test_it_is_refused_without_donors(starving, model, why):
    cluster, refusals = starving
    wait_until(lambda: model in refusals, WAIT, f"{model} refuses")
    code, details = refusals[model]
    print(details)
    assert code == grpc.StatusCode.OUT_OF_RANGE and why in details
    assert cluster.blocks(model, "used") == 0
