"""Records of tf.train.SequenceExample as features: the context as it is, a feature list as a list of its steps' values.

A schema's lists have one dimension, so every step must have one value. Steps of several values are an array of the
shape (steps, values), where all records have as many; or flat with the shape (None,), where a schema asks for it.

Example:
    >>> parsed(example.joined([example.entry("x", Feature("int64"), b"")])).keys()
    dict_keys(['x'])
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tfdist.data.format import example
from tfdist.data.format.schema import Feature
from tfdist.errors import ConfigError

Parsed = dict[str, tuple[str, list[Any]]]


def parsed(payload: bytes, schema: Mapping[str, Feature] | None = None, *, tells: bool = False) -> Parsed:
    """Return the features of an example or a sequence, as `example.parse` does."""
    found = example.parse(payload)
    for name, steps in example.sequences(payload).items():
        if name in found:
            raise ConfigError(
                f"{name!r} is in the context of the sequence and one of its feature lists; rename one.", name=name
            )
        kinds = {kind for kind, _ in steps if kind}
        if len(kinds) > 1:
            raise ConfigError(
                f"the feature list {name!r} has steps of {' and of '.join(sorted(kinds))}.",
                name=name,
                received=" and ".join(sorted(kinds)),
            )
        sizes = [len(values) for _, values in steps]
        if not (tells and len(set(sizes)) == 1):
            _check(name, sizes, schema.get(name) if schema else None)
        found[name] = (kinds.pop() if kinds else "", [value for _, values in steps for value in values])
    return found


def shape_of(steps: Sequence[tuple[str, Sequence[Any]]]) -> tuple[int, int]:
    """Return how many steps a feature list has, and how many values each; they have as many.

    Example:
        >>> shape_of([("int64", [1, 2]), ("int64", [3, 4]), ("int64", [5, 6])]), shape_of([])
        ((3, 2), (0, 1))
    """
    return len(steps), len(steps[0][1]) if steps else 1


def need_one_example(payload: bytes, where: str) -> None:
    """Refuse a record that is a list of examples."""
    if example.lists_examples(payload):
        raise ConfigError(
            f"{where} is an ExampleListWithContext, as TensorFlow Ranking writes them: a list of examples in each "
            "record. Write each list as one tf.train.Example, whose features are lists of any length, or each example "
            "of a list as a record of its own, with the number of its list as a feature.",
            name="ExampleListWithContext",
        )


def _check(name: str, sizes: list[int], feature: Feature | None) -> None:
    alike = set(sizes)
    if alike <= {1}:
        return
    if len(alike) > 1 or not feature:
        way = (
            "Pass a schema that names it: the shape (None,) has the values of all steps one after the other, (steps, "
            "values) an array."
            if len(alike) == 1
            else "Where a step ends would be lost: write its values and their numbers as two features."
        )
        raise ConfigError(
            f"the feature list {name!r} has steps of {_listed(sorted(alike))} values, and a list has one per step. "
            + way,
            name=name,
            received=sorted(alike),
        )
    if feature.shape not in ((None,), (len(sizes), sizes[0])):
        raise ConfigError(
            f"the feature list {name!r} has {len(sizes)} steps of {sizes[0]} values; the schema has the shape "
            f"{feature.shape}.",
            name=name,
            received=(len(sizes), sizes[0]),
        )


def _listed(sizes: list[int]) -> str:
    return ", ".join(map(str, sizes[:5])) + (", ..." if len(sizes) > 5 else "")
