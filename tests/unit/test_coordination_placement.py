"""Variables are spread by bytes."""

import itertools
import random

import pytest

from tfdist.training.parameter_servers.variable_placement import (
    Piece,
    boundaries,
    largest_first,
    least_loaded,
    loads,
    table,
)


@pytest.mark.parametrize("seed", range(10))
def test_the_fullest_server_holds_little_more_than_it_must(seed: int) -> None:
    draw = random.Random(seed)
    sizes = [draw.randint(1, 50) for _ in range(7)]
    servers = 3
    placed = largest_first(sizes, servers)
    fullest = max(sum(s for s, p in zip(sizes, placed, strict=True) if p == server) for server in range(servers))
    best = min(
        max(sum(s for s, p in zip(sizes, choice, strict=True) if p == server) for server in range(servers))
        for choice in itertools.product(range(servers), repeat=len(sizes))
    )
    assert fullest <= best * (4 / 3 - 1 / (3 * servers)) + 1e-9


def test_the_largest_do_not_meet_on_a_server_that_the_small_have_filled() -> None:
    # in the order given, each where least lies: 1, 1, 1 | 3 would end with 4 beside 2
    assert largest_first([1, 1, 1, 3], 2) == [1, 1, 1, 0]


def test_what_lies_there_already_is_counted() -> None:
    assert largest_first([5, 4], 2, [10, 0]) == [1, 1]
    assert largest_first([], 2) == []


@pytest.mark.parametrize(("rows", "parts"), [(10, 3), (3, 5), (1, 1), (7, 7), (10_000_019, 4)])
def test_parts_cover_all_rows_and_differ_by_one(rows: int, parts: int) -> None:
    edges = boundaries(rows, parts)
    sizes = [end - begin for begin, end in itertools.pairwise(edges)]
    assert edges[0] == 0
    assert edges[-1] == rows
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == min(parts, rows)


def test_of_equal_servers_the_first_is_taken() -> None:
    assert least_loaded([2, 1, 1]) == 1


def test_a_table_shows_parts_and_totals() -> None:
    pieces = [
        Piece(path="embedding/embeddings", part=part, parts=2, shape=(5, 2), bytes=40, server=part) for part in (0, 1)
    ]
    text = table(pieces, 3)
    assert "1/2" in text
    assert "2/2" in text
    assert text.splitlines()[-1].split("; ")[-2:] == ["server 1: 40 bytes", "server 2: 0 bytes"]
    assert loads(pieces, 3) == {0: 40, 1: 40, 2: 0}
