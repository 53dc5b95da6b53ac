"""Secure aggregation: exact sums for every drop-out set, nothing below the threshold, no answer to a liar."""

import copy
import itertools
from collections import Counter

import numpy as np
import pytest

from tests.refusals import refused
from tests.unit.secure_sums import Sum, identities, names
from tfdist.errors import ConfigError
from tfdist.federated.secure import masking_plan
from tfdist.federated.secure.mask_stream import KEY_BYTES, apply_masks, public_key
from tfdist.federated.secure.masking_client import MaskingClient, Phase
from tfdist.federated.secure.masking_plan import AbortedError, MaskingPlan, ProtocolError
from tfdist.federated.secure.neighbour_graph import Degree, neighbours_of, safe_degree
from tfdist.federated.transport.array_frames import pack

PHASES = list(Phase)[:5]


def at(count: int, phase: Phase, **options: object) -> Sum:
    """A sum whose next phase is this one."""
    one = Sum(count, **options)  # type: ignore[arg-type]
    while one.server.phase < phase:
        one.step()
    return one


@pytest.mark.parametrize("count", [3, 4, 5, 6])
@pytest.mark.parametrize("phase", PHASES)
def test_every_set_of_lost_clients_gives_the_exact_sum_or_none(count: int, phase: Phase) -> None:
    start = at(count, phase, threshold=count // 2 + 1)
    for size in range(count + 1):
        for lost in itertools.combinations(names(count), size):
            one = copy.deepcopy(start)
            if count - size < one.plan.threshold:
                with refused(AbortedError, name="threshold", received=str(count - size)):
                    one.run(dict.fromkeys(lost, phase))
                assert one.server.phase == phase, "a sum that is aborted asks for nothing more"
                continue
            found = one.run(dict.fromkeys(lost, phase))
            stayed = [name for name in names(count) if name not in lost or phase > Phase.UPLOAD]
            assert list(one.server.survivors) == stayed
            assert (found == one.expected(stayed)).all()


def test_clients_lost_at_different_phases() -> None:
    """Two of five clients are lost, each at a phase of its own; the threshold is three."""
    for first, second in ((0, 1), (1, 2), (2, 3), (3, 4), (2, 1), (1, 5), (2, 2)):
        one = Sum(5, threshold=3, bits=64)
        found = one.run({"c001": first, "c004": second})
        stayed = [n for n, at in (("c000", 5), ("c001", first), ("c002", 5), ("c003", 5), ("c004", second)) if at > 2]
        assert (found == one.expected(stayed)).all()


def test_a_graph_of_few_neighbours_gives_the_exact_sum() -> None:
    one = Sum(40, colluding=0.0, lost=0.1)
    assert one.plan.degree.neighbours < 30
    lost = {"c003": Phase.SHARE, "c017": Phase.UPLOAD, "c018": Phase.CONFIRM, "c030": Phase.REVEAL}
    found = one.run(lost)
    stayed = [name for name in names(40) if name not in ("c003", "c017")]
    assert (found == one.expected(stayed)).all()


def test_uploads_are_uniform_and_differ_between_sums() -> None:
    """Vectors of zeros: what a server sees has every byte equally often, for one client and for each place."""
    one, two = Sum(3, length=250_000), Sum(3, length=250_000, session=b"t")
    for each in (one, two):
        each.vectors = {name: np.zeros(250_000, "<u4") for name in each.vectors}
        each.run({})
        assert (each.server.result() == 0).all()
        for upload in each.uploads.values():
            counts = np.bincount(upload.view(np.uint8), minlength=256)
            expected = upload.nbytes / 256
            chi_square = ((counts - expected) ** 2 / expected).sum()
            assert chi_square < 400, "255 degrees of freedom: one in ten million is above 400"
    assert (one.uploads["c000"] != two.uploads["c000"]).mean() > 0.99


def test_masks_follow_rfc_8439() -> None:
    """The keystream of the zero key, from the first test vector of the appendix, crosses blocks in order."""
    words = np.zeros(100_003, "<u4")
    apply_masks(words, added=[bytes(32)])
    assert words[:4].tobytes().hex() == "76b8e0ada0f13d90405d6ae55386bd28"
    assert words[16:20].tobytes().hex() == "9f07e7be5551387a98ba977c732d080d"  # block 1
    again = np.zeros(100_003, "<u4")
    apply_masks(again[:70_000], added=[bytes(32)])
    assert (again[:70_000] == words[:70_000]).all()
    apply_masks(words, removed=[bytes(32)])
    assert not words.any()


def test_a_client_never_gives_both_secrets_of_a_peer() -> None:
    one = at(4, Phase.CONFIRM)
    one.requests["c000"]["lost"] = ["c003"]
    with refused(ProtocolError, name="c000", mentions=("c003",)):
        one.answer("c000", Phase.CONFIRM)
    with refused(ProtocolError, name="c000", received="confirm"):
        one.answer("c000", Phase.CONFIRM)


def test_what_a_server_keeps_grows_with_its_clients_and_no_faster() -> None:
    """The questions repeat lists of all clients for each client: a thousand of them would fit into no frame."""
    for phase in (Phase.CONFIRM, Phase.REVEAL):
        few, many = (sum(map(len, pack(at(count, phase).server.state()))) for count in (10, 20))
        assert many < 2.5 * few, phase
    one = at(10, Phase.UPLOAD)
    for name in names(10):
        one.server.receive(name, Phase.UPLOAD, one.answer(name, Phase.UPLOAD))
    assert sum(map(len, pack(one.server.added()))) < 500, "it is written with each vector"


def test_a_client_reveals_once() -> None:
    one = at(3, Phase.REVEAL)
    one.answer("c000", Phase.REVEAL)
    with refused(ProtocolError, name="c000", received="reveal"):
        one.answer("c000", Phase.REVEAL)


def test_clients_that_were_told_unlike_outcomes_reveal_nothing() -> None:
    """The server calls c003 lost to two of four clients, for its other secret."""
    one = at(4, Phase.CONFIRM)
    for name in ("c000", "c001"):
        one.requests[name] = {"survivors": ["c000", "c001", "c002"], "lost": ["c003"]}
    signatures = {name: one.answer(name, Phase.CONFIRM) for name in names(4)[:3]}
    for name in names(4)[:3]:
        one.requests[name] = {"confirmations": signatures}
        with refused(ProtocolError):
            one.answer(name, Phase.REVEAL)


def test_clients_that_were_shown_unlike_keys_reveal_nothing() -> None:
    one = at(4, Phase.SHARE)
    for name in ("c000", "c001", "c002"):
        if name == "c000":
            del one.requests[name]["adverts"]["c003"]
        answer = one.answer(name, Phase.SHARE)
        if name != "c000":
            one.server.receive(name, Phase.SHARE, answer)
        else:
            with refused(ProtocolError, name=name):  # the server of this test is honest, and sees it at once
                one.server.receive(name, Phase.SHARE, answer)


CHANGES = {
    "a forged key": lambda one, sent: sent["adverts"].update(c001=bytes(1) + sent["adverts"]["c001"][1:]),
    "swapped keys": lambda one, sent: sent["adverts"].update(c001=sent["adverts"]["c002"]),
    "its own keys": lambda one, sent: sent["adverts"].update(c000=sent["adverts"]["c001"]),
    "too few keys": lambda one, sent: [sent["adverts"].pop(name) for name in ("c001", "c002")],
    "a stranger": lambda one, sent: sent["adverts"].update(eve=sent["adverts"]["c001"]),
    "a cut key": lambda one, sent: sent["adverts"].update(c001=sent["adverts"]["c001"][:-1]),
    "no bytes": lambda one, sent: sent["adverts"].update(c001=1),
    "no mapping": lambda one, sent: sent.update(adverts=[1]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_client_refuses_changed_keys(change: str) -> None:
    one = at(4, Phase.SHARE)
    CHANGES[change](one, one.requests["c000"])
    with refused(ProtocolError):
        one.answer("c000", Phase.SHARE)


BOXES = {
    "swapped boxes": lambda boxes: boxes.update(c001=boxes["c002"], c002=boxes["c001"]),
    "a changed box": lambda boxes: boxes.update(c001=bytes([boxes["c001"][0] ^ 1]) + boxes["c001"][1:]),
    "a missing box": lambda boxes: boxes.pop("c001"),
    "a box of its own": lambda boxes: boxes.update(c000=boxes["c001"]),
    "a cut box": lambda boxes: boxes.update(c001=boxes["c001"][:-1]),
}


@pytest.mark.parametrize("change", BOXES)
def test_a_client_refuses_changed_boxes(change: str) -> None:
    one = at(4, Phase.UPLOAD)
    BOXES[change](one.requests["c000"]["boxes"])
    with refused(ProtocolError):
        one.answer("c000", Phase.UPLOAD)


OUTCOMES = {
    "too few": (["c000", "c001"], ["c002", "c003"]),
    "itself lost": (["c001", "c002", "c003"], ["c000"]),
    "one left out": (["c000", "c001", "c002"], []),
    "a stranger": (["c000", "c001", "c002", "eve"], ["c003"]),
    "one twice": (["c000", "c001", "c002", "c002"], ["c003"]),
    "no names": ([1, 2, 3], []),
    "no lists": (3, None),
}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_client_refuses_outcomes_that_cannot_be(outcome: str) -> None:
    one = at(4, Phase.CONFIRM)
    survivors, lost = OUTCOMES[outcome]
    one.requests["c000"] = {"survivors": survivors, "lost": lost}
    with refused(ProtocolError):
        one.answer("c000", Phase.CONFIRM)


def test_a_client_refuses_confirmations_that_are_too_few_forged_or_replayed() -> None:
    old = at(4, Phase.REVEAL, session=b"old")
    for change in ("few", "forged", "replayed", "stranger"):
        one = at(4, Phase.REVEAL)
        signatures = one.requests["c000"]["confirmations"]
        if change == "few":
            del signatures["c001"], signatures["c002"]
        elif change == "forged":
            signatures["c001"] = bytes(64)
        elif change == "replayed":
            signatures["c001"] = old.requests["c001"]["confirmations"]["c001"]
        else:
            signatures["eve"] = signatures["c001"]
        with refused(ProtocolError):
            one.answer("c000", Phase.REVEAL)


def test_keys_of_another_sum_are_refused() -> None:
    old, one = at(3, Phase.SHARE, session=b"old"), at(3, Phase.SHARE)
    one.requests["c000"]["adverts"]["c001"] = old.requests["c001"]["adverts"]["c001"]
    with refused(ProtocolError, name="c001"):
        one.answer("c000", Phase.SHARE)
    with refused(ProtocolError, name="c001"):
        Sum(3).server.receive("c001", Phase.ADVERTISE, old.requests["c001"]["adverts"]["c001"])


def test_a_key_of_low_order_is_refused() -> None:
    """Every pair would have the secret zero with such a key, and the server would know it."""
    keys, _ = identities(names(3))
    one = Sum(3)
    body = bytes(KEY_BYTES) + public_key(b"x" * 32) + bytes(KEY_BYTES)
    signature = keys["c001"].sign(masking_plan.advert_statement(one.plan, "c001", body))
    with refused(ProtocolError, name="c001"):
        one.server.receive("c001", Phase.ADVERTISE, body + signature)
    adverts = {name: one.clients[name].advertise() for name in ("c000", "c002")}
    with refused(ProtocolError, name="c001"):
        one.clients["c000"].share({**adverts, "c001": body + signature})


def test_the_server_refuses_what_comes_late_twice_or_in_another_shape() -> None:
    one = at(4, Phase.UPLOAD)
    answer = one.answer("c000", Phase.UPLOAD)
    for wrong in (answer[:-1], answer.astype("<i4"), answer.tobytes(), None):
        with refused(ProtocolError, name="c001"):
            one.server.receive("c001", Phase.UPLOAD, wrong)
        one.server.awaited |= {"c001"}
    one.server.receive("c000", Phase.UPLOAD, answer)
    with refused(ProtocolError, name="c000"):
        one.server.receive("c000", Phase.UPLOAD, answer)
    with refused(ProtocolError, name="c001"):
        one.server.receive("c001", Phase.SHARE, {})
    with refused(ProtocolError, name="eve"):
        one.server.receive("eve", Phase.UPLOAD, answer)


def test_one_wrong_share_costs_nothing_and_more_an_abort() -> None:
    for liars, fits in ((1, True), (3, False)):
        one = at(4, Phase.REVEAL, threshold=3)
        for place, name in enumerate(names(4)):
            shares = one.answer(name, Phase.REVEAL)
            lies = {peer: bytes(KEY_BYTES) for peer in shares}
            one.server.receive(name, Phase.REVEAL, lies if place < liars else shares)
        if fits:
            one.server.advance()
            assert (one.server.result() == one.expected(names(4))).all()
        else:
            with refused(AbortedError):
                one.server.advance()
            with refused(ProtocolError):
                one.server.result()


def test_what_a_client_adds_is_checked_before_it_answers() -> None:
    one = at(3, Phase.UPLOAD)
    request = one.requests["c000"]
    for words in (np.zeros(4, "<u4"), np.zeros(5, "<u8"), np.zeros(5, np.float32)):
        with refused(ConfigError, name="words"):
            one.clients["c000"].upload(**request, words=words)  # type: ignore[arg-type]
    one.answer("c000", Phase.UPLOAD)


@pytest.mark.parametrize(
    ("clients", "options"),
    [
        (["a", "b"], {}),
        (["a", "b", "a"], {}),
        (["a", "b", "c", "d"], {"threshold": 2}),
        (["a", "b", "c"], {"threshold": 4}),
        (["a", "b", "c"], {"bits": 16}),
        (["a", "b", "c"], {"length": 0}),
        (["a", "b", "c"], {"lost": 0.7}),
    ],
)
def test_plans_that_hide_nothing_are_refused(clients: list[str], options: dict[str, object]) -> None:
    with refused(ConfigError):
        MaskingPlan.of(clients, **{"session": b"s", "length": 3, **options})  # type: ignore[arg-type]


def test_degrees_are_the_documented_ones() -> None:
    assert safe_degree(6) == Degree(5, 5)
    found = {count: safe_degree(count).neighbours for count in (100, 1000, 10_000)}
    assert found == {100: 32, 1000: 44, 10_000: 52}
    assert safe_degree(100, colluding=0.33) == Degree(58, 42)
    assert safe_degree(100, colluding=None) == Degree(99, 67), "all pairs"


def test_neighbours_are_mutual_and_of_one_degree() -> None:
    clients = names(31)
    graph = neighbours_of(clients, 6, b"seed")
    assert all(len(found) == 7 and name in found for name, found in graph.items())
    assert all(name in graph[peer] for name, found in graph.items() for peer in found)
    assert graph != neighbours_of(clients, 6, b"other")
    assert Counter(peer for found in graph.values() for peer in found) == dict.fromkeys(clients, 7)


def test_a_client_needs_the_roster() -> None:
    """A server cannot bring clients of its own."""
    keys, roster = identities(names(3))
    plan = MaskingPlan.of(names(3), session=b"s", length=2)
    client = MaskingClient(plan, "c000", keys["c000"], {name: roster[name] for name in ("c000", "c001")})
    others = {n: MaskingClient(plan, n, keys[n], roster).advertise() for n in ("c001", "c002")}
    with refused(ProtocolError, name="c002"):
        client.share({"c000": client.advertise(), **others})
