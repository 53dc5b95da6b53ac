"""Slurm's compressed lists, against a slow oracle."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refused
from tfdist.cluster.hostlist import expand, expand_counts
from tfdist.errors import ConfigError

PREFIXES = st.text("abcxyz-_.", min_size=1, max_size=6)


@st.composite
def patterns(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A list as Slurm may write it, and what it stands for, worked out by counting."""
    entries, expected = [], []
    for _ in range(draw(st.integers(1, 3))):
        text, choices = "", []
        for _ in range(draw(st.integers(1, 3))):
            plain = draw(PREFIXES)
            text += plain
            choices.append([plain])
            if draw(st.booleans()):
                parts, numbers = [], []
                for _ in range(draw(st.integers(1, 3))):
                    low, count, width = draw(st.integers(0, 120)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
                    ends = [f"{low:0{width}d}", f"{low + count - 1:0{width}d}"]
                    parts.append(ends[0] if count == 1 and draw(st.booleans()) else "-".join(ends))
                    numbers += [f"{number:0{max(width, len(ends[0]))}d}" for number in range(low, low + count)]
                text += f"[{','.join(parts)}]"
                choices.append(numbers)
        entries.append(text)
        expected += ["".join(choice) for choice in itertools.product(*choices)]
    return ",".join(entries), expected


@given(patterns())
def test_expand_agrees_with_counting(pattern: tuple[str, list[str]]) -> None:
    text, expected = pattern
    assert expand(text) == expected


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("c9", "c9"),
        ("a[1-3,7]b[01-02],c9", "a1b01 a1b02 a2b01 a2b02 a3b01 a3b02 a7b01 a7b02 c9"),
        ("n[9-11]", "n9 n10 n11"),
        ("n[009-011]", "n009 n010 n011"),
        ("n[098-101]x", "n098x n099x n100x n101x"),
        ("n1.cluster.example.org,n[2-3].x", "n1.cluster.example.org n2.x n3.x"),
        (" n[1-2] \n", "n1 n2"),
        ("[1-2]", "1 2"),
    ],
)
def test_expand_examples(text: str, nodes: str) -> None:
    assert expand(text) == nodes.split()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "empty"),
        ("a,,b", "empty"),
        ("a,", "empty"),
        ("a[1-3", "closed"),
        ("a1-3]", "character 5"),
        ("a[1-[2]]", "character 5"),
        ("a[]", "'' in []"),
        ("a[1-]", "'1-' in [1-]"),
        ("a[1-2-3]", "'1-2-3' in [1-2-3]"),
        ("a[x]", "'x' in [x]"),
        ("a[1,,2]", "'' in [1,,2]"),
        ("a[²]", "'²' in [²]"),
        ("a[3-1]", "range 3-1"),
        ("a b", "white space"),
        ("a[1-999999999]", "100000 nodes"),
        ("a[1-1000]b[1-1000]", "100000 nodes"),
        ("a[1-60000],b[1-60000]", "100000 nodes"),
    ],
)
def test_expand_refuses(text: str, what: str) -> None:
    with refused(ConfigError, name="SLURM_STEP_NODELIST", received=text, mentions=[what]):
        expand(text, name="SLURM_STEP_NODELIST")


@given(st.text("a1[]-,2 ", max_size=12))
def test_expand_never_fails_otherwise(text: str) -> None:
    try:
        nodes = expand(text)
    except ConfigError:
        return
    assert nodes
    assert not any(set(node) & set("[], ") for node in nodes)


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 9)), min_size=1, max_size=6))
def test_counts(runs: list[tuple[int, int]]) -> None:
    text = ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)
    assert expand_counts(text) == [count for count, times in runs for _ in range(times)]


@pytest.mark.parametrize("text", ["", "2(x3", "2x3", "(x3)", "-1", "2,,1", "2(x999999)", "two"])
def test_counts_refuse(text: str) -> None:
    with refused(ConfigError, name="SLURM_TASKS_PER_NODE", received=text):
        expand_counts(text, name="SLURM_TASKS_PER_NODE")
