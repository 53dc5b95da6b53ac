"""A mesh and the groups of its processes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refused
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
    with refused(ConfigError, name="rank", received=one.size):
        one.coordinates(one.size)


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
    ("text", "name", "received", "entry"),
    [
        ("", "--mesh", "", "''"),
        ("batch", "--mesh", "batch", "and 'batch'"),
        ("batch=", "--mesh", "batch=", "and 'batch='"),
        ("=2", "--mesh", "=2", "and '=2'"),
        ("batch=2,,model=2", "--mesh", "batch=2,,model=2", "and ''"),
        ("batch=-2", "--mesh", "batch=-2", "and 'batch=-2'"),
        ("batch=2.5", "--mesh", "batch=2.5", "and 'batch=2.5'"),
        ("batch=0", "the size of the axis 'batch'", "0", "1"),
        ("batch=2,batch=2", "mesh", "batch, batch", "once"),
        ("a b=2", "mesh", "a b", "'a b'"),
    ],
)
def test_what_is_no_mesh_is_said(text: str, name: str, received: str, entry: str) -> None:
    with refused(ConfigError, name=name, received=received, mentions=[entry]):
        Mesh.parse(text, name="--mesh")


@pytest.mark.parametrize(
    "axes", [[("batch", 2)], (("batch", 2), ("model",)), (("batch", 2.0),), (("batch", True),), "batch=2", ("m2",)]
)
def test_wrong_types_are_said(axes: object) -> None:
    with pytest.raises(ConfigTypeError):
        Mesh(axes)  # type: ignore[arg-type]


def test_as_many_devices_as_places() -> None:
    one = Mesh.parse("batch=2,model=2")
    one.require_size(4, 1, "tfdist run")
    one.require_size(2, 2, "tfdist run")
    assert [one.devices_of_each(processes, "tfdist run") for processes in (1, 2, 4)] == [4, 2, 1]
    mesh_of_four = {"name": "mesh", "received": "batch=2,model=2"}
    with refused(ConfigError, **mesh_of_four, mentions=["-n 2", "2 processes of 1 device", "run -n 4"]):
        one.require_size(2, 1, "-n 2")
    for processes in (3, 8):
        with refused(ConfigError, **mesh_of_four, mentions=[f"{processes} processes", "tfdist run"]):
            one.devices_of_each(processes, "tfdist run")


def test_what_lies_in_a_process_are_the_neighbours() -> None:
    assert Mesh.parse("batch=4,model=2").between_processes(4, divisible="batch") == Mesh.parse("batch=2,model=1")
    assert Mesh.parse("model=2,batch=4").between_processes(2, divisible="batch") == Mesh.parse("model=2,batch=2")
    with refused(ConfigError, name="mesh", received="batch=2,model=4", mentions=["4 places", "'model'", "2 devices"]):
        Mesh.parse("batch=2,model=4").between_processes(2, divisible="batch")


@given(st.permutations(["batch", "model", "row"]), st.lists(st.integers(1, 4), min_size=3, max_size=3))
def test_each_process_has_whole_groups_along_all_axes_but_the_divisible(names: list[str], sizes: list[int]) -> None:
    one = Mesh.of(names, sizes)
    for devices in range(1, one.size + 1):
        if one.size % devices:
            continue
        try:
            processes = one.between_processes(devices, divisible="batch")
        except ConfigError:
            continue
        assert processes.size * devices == one.size
        for rank in range(one.size):
            for name in names:
                near = [member for member in one.group(rank, [name]) if member // devices == rank // devices]
                assert len(near) * processes.size_of(name) == one.size_of(name)
                assert name == "batch" or len(near) in (1, one.size_of(name))


def test_an_axis_that_is_not_there_is_said() -> None:
    with refused(ConfigError, name="an axis", received="modle", mentions=["'model'"]):
        Mesh.parse("batch=2,model=2").group(0, ["modle"])
    assert Mesh.parse("batch=2,model=2,row=1").others("model") == ("batch", "row")
    with refused(ConfigError, name="an axis", received="modle"):
        Mesh.parse("batch=2,model=2").others("modle")


def test_what_a_user_may_give() -> None:
    class DeviceMesh:
        axis_names = ("batch", "model")
        shape = (2, 3)

    wanted = Mesh((("batch", 2), ("model", 3)))
    assert all(mesh.of(one) == wanted for one in (wanted, "batch=2,model=3", {"batch": 2, "model": 3}, DeviceMesh()))
    with refused(ConfigTypeError, name="mesh", received=4):
        mesh.of(4)
    with pytest.raises(ConfigError):
        mesh.of({})
    with pytest.raises(ConfigTypeError):
        mesh.of({"batch": 2.5})


def test_groups_of_a_large_mesh_are_made_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    group = Mesh.group

    def counted(self: Mesh, rank: int, axes: list[str]) -> tuple[int, ...]:
        made.append(rank)
        return group(self, rank, axes)

    monkeypatch.setattr(Mesh, "group", counted)
    assert len(Mesh.parse("batch=8,model=3").groups(["batch"])) == len(made) == 3
