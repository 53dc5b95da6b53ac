"""A mesh and the groups of its processes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.cluster import mesh
from tfdist.cluster.mesh import Mesh
from tfdist.errors import ConfigError, ConfigTypeError

meshes = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(
    lambda sizes: Mesh(tuple((f"axis{index}", size) for index, size in enumerate(sizes)))
)


@given(meshes)
def test_ranks_and_coordinates_are_one_to_one(one: Mesh) -> None:
    places = [tuple(one.coordinates(rank).values()) for rank in range(one.size)]
    assert places == sorted(set(places))
    assert [one.rank(one.coordinates(rank)) for rank in range(one.size)] == list(range(one.size))


@given(meshes, st.data())
def test_groups_part_the_mesh(one: Mesh, data: st.DataObject) -> None:
    axes = data.draw(st.lists(st.sampled_from(one.names), unique=True))
    groups = one.groups(axes)
    assert sorted(rank for group in groups for rank in group) == list(range(one.size))
    for group in groups:
        assert list(group) == sorted(group)
        assert all(one.group(rank, axes) == group for rank in group)
        fixed = {tuple(one.coordinates(rank)[name] for name in one.names if name not in axes) for rank in group}
        assert len(fixed) == 1


@given(meshes)
def test_a_text_leads_back(one: Mesh) -> None:
    assert Mesh.parse(str(one)) == one


def test_the_last_axis_has_neighbours() -> None:
    assert Mesh.parse("batch=2,model=3").groups(["model"]) == [(0, 1, 2), (3, 4, 5)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "a text that is not empty"),
        ("batch", "'batch' is no axis with a size"),
        ("batch=", "'batch=' is no axis"),
        ("=2", "'=2' is no axis"),
        ("batch=2,,model=2", "'' is no axis"),
        ("batch=-2", "no axis with a size"),
        ("batch=2.5", "no axis with a size"),
        ("batch=0", "at least 1"),
        ("batch=2,batch=2", "each name may be there once"),
        ("a b=2", "must be a plain word"),
    ],
)
def test_what_is_no_mesh_is_said(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Mesh.parse(text, name="--mesh")


@pytest.mark.parametrize("axes", [[("batch", 2)], (("batch",),), (("batch", 2.0),), (("batch", True),), "batch=2"])
def test_wrong_types_are_said(axes: object) -> None:
    with pytest.raises(ConfigTypeError):
        Mesh(axes)  # type: ignore[arg-type]


def test_as_many_processes_as_places() -> None:
    one = Mesh.parse("batch=2,model=2")
    one.require_size(4, "tfdist run")
    with pytest.raises(ConfigError, match=r"has 4 places, and there are 3 processes \(tfdist run\)"):
        one.require_size(3, "tfdist run")


def test_an_axis_that_is_not_there_is_said() -> None:
    with pytest.raises(ConfigError, match="'modle'"):
        Mesh.parse("batch=2,model=2").group(0, ["modle"])


def test_what_a_user_may_give() -> None:
    class DeviceMesh:
        axis_names = ("batch", "model")
        shape = (2, 3)

    wanted = Mesh((("batch", 2), ("model", 3)))
    assert all(mesh.of(one) == wanted for one in (wanted, "batch=2,model=3", {"batch": 2, "model": 3}, DeviceMesh()))
    with pytest.raises(ConfigTypeError, match="mesh is 4"):
        mesh.of(4)
