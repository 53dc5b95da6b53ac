"""The layouts of weights: patterns, errors, parts."""

import ast
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refused
from tfdist.cluster.mesh import Mesh
from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.parallel import layouts
from tfdist.parallel.layouts import Layouts

MESH = Mesh.parse("batch=2,model=2,row=3")


def of(given: object) -> Layouts:
    return Layouts(MESH, given, batch="batch")


def test_a_pattern_is_for_the_whole_path() -> None:
    one = of({"dense/kernel": (None, "model"), ".*bias": ("model",)})
    assert one.of("dense/kernel", (4, 6)) == (None, "model")
    assert one.of("sequential/dense/kernel", (4, 6)) == (None, None)
    assert one.of("sequential/dense/bias", (6,)) == ("model",)
    one.require_all_matched()


def test_a_layout_may_be_shorter_than_the_shape() -> None:
    assert of({".*": ("row",)}).of("conv/kernel", (3, 4, 5)) == ("row", None, None)


def test_an_exact_path_goes_before_patterns() -> None:
    assert of({"a/kernel": ("row",), ".*kernel": ("model",)}).of("a/kernel", (6,)) == ("row",)


@pytest.mark.parametrize(
    ("given", "path", "shape", "facts"),
    [
        ({".*": (None, "model")}, "dense/kernel", (4, 5), ["(4, 5)", "dim 1 is 5"]),
        ({".*": ("row", None)}, "dense/bias", (6,), ["(6,)", "1 dim"]),
        ({".*": ("row",)}, "scale", (), ["()", "0 dim"]),
        ({".*": ("row",), "dense.*": ("model",)}, "dense/bias", (6,), ["'.*' and 'dense.*'"]),
    ],
)
def test_layouts_that_do_not_fit_are_said(given: object, path: str, shape: tuple[int, ...], facts: list[str]) -> None:
    with refused(ConfigError, name=path, mentions=facts):
        of(given).of(path, shape)


def test_a_pattern_without_a_weight_is_said() -> None:
    one = of({"dense/kernel": ("model",), "densse/.*": ("model",)})
    one.of("dense/kernel", (4, 2))
    with refused(ConfigError, name="layout_map", received="densse/.*", mentions=["dense/kernel (4, 2)"]):
        one.require_all_matched()


@pytest.mark.parametrize(
    ("given", "kind", "name", "received", "fact"),
    [
        ({"[": ("model",)}, ConfigError, "layout_map", "[", "regular expression"),
        ({3: ("model",)}, ConfigError, "layout_map", 3, "regular expression"),
        ({".*": ("modle",)}, ConfigError, "an axis", "modle", "'model'"),
        ({".*": ("batch",)}, ConfigError, "layout_map['.*']", ("batch",), "examples"),
        ({".*": ("row", "row")}, ConfigError, "layout_map['.*']", ("row", "row"), "once"),
        ({".*": "model"}, ConfigTypeError, "layout_map['.*']", "'model'", "tuple"),
        ({".*": (("row", "model"),)}, ConfigTypeError, "layout_map['.*']", (("row", "model"),), "tuple"),
        ("automatic", ConfigTypeError, "layout_map", "'automatic'", "dictionary"),
        (5, ConfigTypeError, "layout_map", 5, "dictionary"),
    ],
)
def test_what_is_no_layout_is_said(
    given: object, kind: type[ConfigError], name: str, received: object, fact: str
) -> None:
    with refused(kind, name=name, received=received, mentions=[fact]):
        of(given)


def test_wrong_types_are_type_errors() -> None:
    with pytest.raises(ConfigTypeError):
        of([(".*", ("model",))])


def _copied(proposal: str | None) -> object:
    """Return the value of the argument that a user copies into a script."""
    assert proposal is not None
    return ast.literal_eval(proposal.removeprefix("layout_map="))


def test_auto_goes_by_columns_then_by_rows_by_heads_words_and_filters() -> None:
    one = Layouts(Mesh.parse("batch=2,model=3"), "auto", batch="batch")
    proposed = {
        ("embedding/embeddings", (9, 4)): ("model", None),
        ("positions/embeddings", (10, 6)): (None, "model"),
        ("attention/query/kernel", (6, 3, 5)): (None, "model", None),
        ("attention/query/bias", (3, 5)): ("model", None),
        ("attention/attention_output/kernel", (3, 5, 6)): ("model", None, None),
        ("attention/attention_output/bias", (6,)): (None,),
        ("normalization/gamma", (6,)): (None,),
        ("up/kernel", (6, 12)): (None, "model"),
        ("up/bias", (12,)): ("model",),
        ("down/kernel", (12, 6)): ("model", None),
        ("down/bias", (6,)): (None,),
        ("next/kernel", (6, 6)): (None, "model"),
        ("awkward/kernel", (5, 7)): (None, None),
        ("rows/kernel", (6, 7)): ("model", None),
        ("convolution/kernel", (3, 3, 4, 9)): (None, None, None, "model"),
        ("convolution/bias", (9,)): ("model",),
        ("cell/recurrent_kernel", (4, 12)): (None, "model"),
        ("number", ()): (),
        ("empty", (0, 3)): (None, "model"),
    }
    assert {key: one.of(*key) for key in proposed} == proposed
    one.require_all_matched()
    copied = _copied(one.proposal(path for path, _ in proposed))
    assert copied == {path: layout for (path, _), layout in proposed.items() if any(layout)}
    assert _copied(one.proposal(["up/kernel", "another/model"])) == {"up/kernel": (None, "model")}
    assert of({".*": ("row",)}).proposal([]) is None
    assert "TFDIST_LAYOUTS" in (of(None).proposal([]) or "")
    assert Layouts(Mesh.parse("batch=3,model=1"), None, batch="batch").proposal([]) is None
    assert "batch=1,model=2" in (Layouts(Mesh.parse("model=2"), "auto", batch="model").proposal([]) or "")
    assert Layouts(Mesh.parse("batch=3,model=1"), "auto", batch="batch").of("w", (6, 6)) == (None, None)


def test_a_pattern_may_be_of_an_activation() -> None:
    one = of({".*kernel": ("row",), ".*norm/output": ("batch", "model", None), ".*last/output": ()})
    assert list(one.given) == [".*kernel"]
    assert [one.outputs.of(path) for path in ("a/norm", "last", "other")] == ["model", "", None]
    one.outputs.require_all_matched(["a/norm", "last"])
    assert of({".*/output": (None, "model")}).may_cut
    assert not of({".*/output": ("batch",)}).may_cut


def test_auto_may_cut_the_sequence_too() -> None:
    one = Layouts(Mesh.parse("batch=2,model=3"), "auto-sequence", batch="batch")
    assert one.outputs.of("anything") == "model"
    assert _copied(one.proposal([])) == {".*/output": ("batch", "model")}
    assert Layouts(MESH, "auto", batch="batch").outputs.of("anything") is None
    assert not Layouts(Mesh.parse("batch=3,model=1"), "auto-sequence", batch="batch").outputs.may_cut


@pytest.mark.parametrize(
    ("layout", "fact"),
    [(("model",), "second dim"), (("batch", None, "model"), "second dim"), ((None, "batch"), "second dim"),
     (("batch", "batch"), "once")],
)  # fmt: skip
def test_an_activation_is_cut_along_its_sequence_alone(layout: tuple[str | None, ...], fact: str) -> None:
    with refused(ConfigError, name="layout_map['.*/output']", received=layout, mentions=[fact]):
        of({".*/output": layout})


def test_a_pattern_without_an_activation_is_said() -> None:
    with refused(ConfigError, name="layout_map", received="lost/output", mentions=["dense/output"]):
        of({"lost/output": ("batch", "model")}).outputs.require_all_matched(["dense"])
    with refused(ConfigError, name="a/output", mentions=["'.*/output' and 'a.*/output'"]):
        of({".*/output": ("batch", "model"), "a.*/output": ()}).outputs.of("a")


@given(st.permutations([None, "model", "row"]), st.lists(st.integers(1, 3), min_size=3, max_size=3))
def test_parts_cover_the_whole_once_for_each_batch_position(axes: list[str | None], times: list[int]) -> None:
    layout = tuple(axes)
    shape = [time * (1 if axis is None else MESH.size_of(axis)) for axis, time in zip(layout, times, strict=True)]
    covered: dict[tuple[int, ...], int] = {}
    for rank in range(MESH.size):
        edges = layouts.bounds(MESH, layout, shape, rank)
        assert tuple(end - begin for begin, end in edges) == layouts.local_shape(MESH, layout, shape)
        for place in itertools.product(*(range(*edge) for edge in edges)):
            covered[place] = covered.get(place, 0) + 1
    assert covered == dict.fromkeys(itertools.product(*map(range, shape)), 2)
