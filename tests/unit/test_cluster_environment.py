"""Every environment from its variables, the order among them, and what malformed variables say."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refused
from tfdist.cluster import Cluster, TaskId, from_environment
from tfdist.errors import ConfigError, ConfigTypeError, TfdistError

TFDIST = {"TFDIST_WORKERS": "127.0.0.1:41,127.0.0.1:42", "TFDIST_WORKER_INDEX": "1", "TFDIST_JOB_ID": "f00"}
TASKS = {"cluster": {"worker": ["a:1", "b:1", "a:2"]}, "task": {"type": "worker", "index": 2}}
TF_CONFIG = {"TF_CONFIG": json.dumps(TASKS)}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
HOROVODRUN = {
    "HOROVOD_RANK": "3",
    "HOROVOD_SIZE": "4",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
}
PMI = {"PMI_RANK": "2", "PMI_SIZE": "3"}
SAGEMAKER = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2", "TRAINING_JOB_NAME": "job"}
JOB = {
    "JOB_COMPLETION_INDEX": "1",
    "HOSTNAME": "train-1",
    "TFDIST_K8S_WORKERS": "2",
    "TFDIST_K8S_SERVICE": "train.default",
}
STATEFUL = {"HOSTNAME": "my-set-0", "TFDIST_K8S_WORKERS": "2", "TFDIST_K8S_SERVICE": "svc"}
SLURM = {
    "SLURM_JOB_ID": "340",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "4",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_NODELIST": "n[1-3],m9",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_NODEID": "2",
    "SLURM_LOCALID": "0",
}


def test_nothing_is_alone() -> None:
    assert from_environment({}) == Cluster(num_workers=1, worker_index=0, source="alone")


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TFDIST.items():
        monkeypatch.setenv(name, value)
    assert from_environment().worker_index == 1


def test_the_order() -> None:
    layers = [TFDIST, TF_CONFIG, HOROVODRUN, OPEN_MPI, PMI, SAGEMAKER, JOB, SLURM]
    sources = [
        "tfdist run",
        "TF_CONFIG",
        "horovodrun",
        "Open MPI",
        "PMI",
        "SageMaker",
        "Kubernetes indexed Job",
        "Slurm",
        "alone",
    ]
    for first in range(len(layers) + 1):
        together = {name: value for layer in layers[first:] for name, value in layer.items()}
        assert from_environment(together).source == sources[first]


def test_tfdist_run() -> None:
    cluster = from_environment(TFDIST | {"TFDIST_LOCAL_INDEX": "1", "TFDIST_LOCAL_WORKERS": "2"})
    assert cluster == Cluster(
        num_workers=2,
        worker_index=1,
        local_index=1,
        local_workers=2,
        addresses=("127.0.0.1:41", "127.0.0.1:42"),
        source="tfdist run",
        job_id="f00",
    )
    assert from_environment(TFDIST) == cluster


def test_tf_config_workers() -> None:
    cluster = from_environment(TF_CONFIG)
    assert (cluster.num_workers, cluster.worker_index, cluster.is_chief) == (3, 2, False)
    assert (cluster.local_index, cluster.local_workers) == (1, 2)
    assert cluster.addresses == ("a:1", "b:1", "a:2")


@pytest.mark.parametrize(
    ("task", "index", "chief"),
    [(("chief", 0), 0, True), (("worker", 0), 1, False), (("worker", 1), 2, False), (("evaluator", 0), -1, False)],
)
def test_a_chief_is_worker_0(task: tuple[str, int], index: int, chief: bool) -> None:
    config = {
        "cluster": {"worker": ["w:1", "w:2"], "chief": ["c:1"]},  # no evaluator, as operators do
        "task": {"type": task[0], "index": task[1], "trial": "1"},  # what Vertex AI adds
        "environment": "cloud",
        "job": "{}",
    }
    cluster = from_environment({"TF_CONFIG": json.dumps(config)})
    assert cluster.task == TaskId(type=task[0], index=task[1])
    assert (cluster.worker_index, cluster.is_chief, cluster.num_workers) == (index, chief, 3)
    assert cluster.is_worker is (index >= 0)
    assert (cluster.addresses, cluster.chief) == (("c:1", "w:1", "w:2"), None)


@pytest.mark.parametrize(
    ("task", "index", "chief"),
    [(("chief", 0), -1, True), (("worker", 0), 0, False), (("worker", 1), 1, False), (("ps", 0), -1, False),
     (("ps", 1), -1, False), (("evaluator", 0), -1, False)],
)  # fmt: skip
def test_with_parameter_servers_the_chief_coordinates(task: tuple[str, int], index: int, chief: bool) -> None:
    config = {
        "cluster": {"worker": ["w:1", "w:2"], "ps": ["p:1", "p:2"], "chief": ["c:1"]},
        "task": {"type": task[0], "index": task[1]},
    }
    cluster = from_environment({"TF_CONFIG": json.dumps(config), "TFDIST_JOB_ID": "f00"})
    assert cluster.task == TaskId(type=task[0], index=task[1])
    assert (cluster.worker_index, cluster.is_chief, cluster.num_workers) == (index, chief, 2)
    assert cluster.is_worker is (index >= 0)
    assert (cluster.addresses, cluster.chief) == (("w:1", "w:2"), "c:1")
    assert (cluster.parameter_servers, cluster.job_id) == (("p:1", "p:2"), "f00")


def test_without_a_chief_worker_0_is_the_chief_beside_parameter_servers_too() -> None:
    config = {"cluster": {"worker": ["w:1"], "ps": ["p:1"]}, "task": {"type": "worker", "index": 0}}
    cluster = from_environment({"TF_CONFIG": json.dumps(config)})
    assert (cluster.is_chief, cluster.chief, cluster.parameter_servers) == (True, None, ("p:1",))


@pytest.mark.parametrize("text", ["", "  ", "{}", '{"cluster": {}}', '{"cluster": {}, "task": {}}', '{"job": {}}'])
def test_a_tf_config_without_cluster_is_none(text: str) -> None:
    assert from_environment({"TF_CONFIG": text}).source == "alone"
    assert from_environment({"TF_CONFIG": text} | SAGEMAKER).source == "SageMaker"


def tf_config(**changes: object) -> str:
    return json.dumps({**TASKS, **changes})


@pytest.mark.parametrize(
    ("text", "kind", "name", "received", "says"),
    [
        ("{'cluster': 1}", ConfigError, "TF_CONFIG", None, "JSON"),
        ("[" * 100000, ConfigError, "TF_CONFIG", None, "JSON"),
        ("[1]", ConfigError, "TF_CONFIG", "list", ""),
        ("null", ConfigError, "TF_CONFIG", "NoneType", ""),
        (tf_config(cluster=None), ConfigError, "cluster", "None", ""),
        (tf_config(cluster=["a:1"]), ConfigError, "cluster", "['a:1']", ""),
        (tf_config(cluster={"master": ["a:1"]}), ConfigError, "cluster", "master", ""),
        (tf_config(cluster={"worker": "a:1"}), ConfigError, "cluster.worker", "'a:1'", ""),
        (tf_config(cluster={"worker": []}), ConfigError, "cluster.worker", "[]", ""),
        (tf_config(cluster={"worker": [1]}), ConfigTypeError, "cluster.worker[0]", "1", ""),
        (tf_config(cluster={"worker": ["a"]}), ConfigError, "cluster.worker[0]", "a", ""),
        (tf_config(cluster={"worker": ["a:x"]}), ConfigError, "the port of cluster.worker[0] ('a:x')", "x", ""),
        (tf_config(cluster={"worker": ["a:0"]}), ConfigError, "the port of cluster.worker[0] ('a:0')", "0", ""),
        (
            tf_config(cluster={"worker": ["a:65536"]}),
            ConfigError,
            "the port of cluster.worker[0] ('a:65536')",
            "65536",
            "",
        ),
        (tf_config(cluster={"worker": [":1"]}), ConfigError, "cluster.worker[0]", ":1", ""),
        (tf_config(cluster={"worker": ["grpc://a:1"]}), ConfigError, "cluster.worker[0]", "grpc://a:1", ""),
        (tf_config(cluster={"worker": ["::1:2222"]}), ConfigError, "cluster.worker[0]", "::1:2222", ""),
        (
            tf_config(cluster={"worker": ["a:1", "b:1", "a:1"]}),
            ConfigError,
            "cluster.worker[2]",
            "a:1",
            "cluster.worker[0]",
        ),
        (tf_config(cluster={"worker": ["a:1"], "ps": ["a:1"]}), ConfigError, "cluster[1]", "a:1", "cluster[0]"),
        (tf_config(cluster={"chief": ["a:1", "b:1"]}), ConfigError, "cluster.chief", "['a:1', 'b:1']", ""),
        (tf_config(cluster={"ps": ["a:1"]}, task={"type": "ps", "index": 0}), ConfigError, "cluster", "ps", ""),
        (
            tf_config(cluster={"ps": ["a:1"], "chief": ["b:1"]}, task={"type": "ps", "index": 0}),
            ConfigError,
            "cluster",
            "ps, chief",
            "chief",
        ),
        (tf_config(task=None), ConfigError, "task", "None", ""),
        (tf_config(task={"type": "worker"}), ConfigError, "task.index", "{'type': 'worker'}", ""),
        (tf_config(task={"index": 0}), ConfigError, "task.type", "{'index': 0}", ""),
        (tf_config(task={}), ConfigError, "task.type and task.index", "{}", ""),
        (tf_config(task={"type": "chief", "index": 0}), ConfigError, "task.type", "'chief'", ""),
        (tf_config(task={"type": ["worker"], "index": 0}), ConfigError, "task.type", "['worker']", ""),
        (tf_config(task={"type": "worker", "index": 3}), ConfigError, "task.index", "3", ""),
        (tf_config(task={"type": "worker", "index": -1}), ConfigError, "task.index", "-1", ""),
        (tf_config(task={"type": "worker", "index": True}), ConfigTypeError, "task.index", "True", ""),
        (tf_config(task={"type": "worker", "index": 1.0}), ConfigTypeError, "task.index", "1.0", ""),
        (tf_config(task={"type": "worker", "index": "one"}), ConfigError, "task.index", "one", ""),
        (tf_config(task={"type": "worker", "index": None}), ConfigTypeError, "task.index", "None", ""),
        (
            '{"cluster": {"worker": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 0}}',
            ConfigError,
            "TF_CONFIG",
            None,
            "twice",
        ),
        ('{"task": {"type": "worker", "index": 0}}', ConfigError, "cluster", "None", ""),
    ],
)
def test_a_malformed_tf_config_says_what_is_wrong(
    text: str, kind: type[ConfigError], name: str, received: str | None, says: str
) -> None:
    with refused(kind, name=name, received=text if received is None else received, mentions=[says]) as caught:
        from_environment({"TF_CONFIG": text})
    message = str(caught.value)
    assert message.startswith("TF_CONFIG")
    assert message.partition("read: ")[2].startswith(repr(text)[:50])
    assert len(message) < 2500


def test_a_tf_config_index_may_be_digits() -> None:
    text = tf_config(task={"type": "worker", "index": "1"})
    assert from_environment({"TF_CONFIG": text}).worker_index == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from(["a:1", "b:2", "worker", "chief", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["cluster", "task", "worker", "chief", "type", "index"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_json_is_a_cluster_or_a_clear_error(value: object) -> None:
    try:
        cluster = from_environment({"TF_CONFIG": json.dumps(value)})
    except ConfigError as caught:
        message = str(caught)
        assert "TF_CONFIG" in message
    else:
        assert 0 <= cluster.worker_index < cluster.num_workers or not cluster.is_worker


def test_sagemaker() -> None:
    cluster = from_environment(SAGEMAKER)
    assert (cluster.worker_index, cluster.addresses) == (1, ("algo-1:8890", "algo-2:8890"))
    assert (cluster.job_id, cluster.local_workers) == ("job", 1)
    assert from_environment(SAGEMAKER | {"TFDIST_PORT": "7000"}).addresses[0] == "algo-1:7000"


def test_kubernetes() -> None:
    job = from_environment(JOB)
    assert (job.worker_index, job.addresses) == (1, ("train-0.train.default:2222", "train-1.train.default:2222"))
    stateful = from_environment(STATEFUL)
    assert (stateful.worker_index, stateful.addresses) == (0, ("my-set-0.svc:2222", "my-set-1.svc:2222"))
    assert from_environment(STATEFUL | {"HOSTNAME": "my-set-1.svc.ns.svc.cluster.local"}).worker_index == 1
    assert from_environment({"JOB_COMPLETION_INDEX": "5", "TFDIST_K8S_WORKERS": "1"}).num_workers == 1


def test_slurm() -> None:
    cluster = from_environment(SLURM)
    assert (cluster.num_workers, cluster.worker_index) == (7, 4)
    assert (cluster.local_index, cluster.local_workers, cluster.job_id) == (0, 2, "340")
    nodes = [address.partition(":")[0] for address in cluster.addresses]
    assert nodes == ["n1", "n1", "n2", "n2", "n3", "n3", "m9"]
    first = int(cluster.addresses[0].partition(":")[2])
    assert [int(address.partition(":")[2]) - first for address in cluster.addresses] == [0, 1, 0, 1, 0, 1, 0]


def test_slurm_cyclic() -> None:
    step = SLURM | {"SLURM_DISTRIBUTION": "cyclic:block", "SLURM_NODEID": "0", "SLURM_LOCALID": "1"}
    nodes = [address.partition(":")[0] for address in from_environment(step).addresses]
    assert nodes == ["n1", "n2", "n3", "m9", "n1", "n2", "n3"]


def test_slurm_tasks_agree_and_neighbouring_jobs_do_not_meet() -> None:
    places = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0)]
    seen = set()
    for rank, (node, local) in enumerate(places):
        own = {"SLURM_PROCID": str(rank), "SLURM_NODEID": str(node), "SLURM_LOCALID": str(local)}
        cluster = from_environment(SLURM | own)
        assert (cluster.worker_index, cluster.local_index) == (rank, local)
        seen.add(cluster.addresses)
    assert len(seen) == 1
    (addresses,) = seen
    for change in ({"SLURM_JOB_ID": "341"}, {"SLURM_STEP_ID": "1"}, {"SLURM_JOB_ID": "70000000"}):
        other = from_environment(SLURM | change).addresses
        assert not set(other) & set(addresses)
        assert all(1024 <= int(address.partition(":")[2]) < 32768 for address in other), "not those the kernel gives"


def test_slurm_without_step_variables_uses_those_of_the_job() -> None:
    old = {
        "SLURM_JOBID": "9",
        "SLURM_STEP_ID": "1",
        "SLURM_PROCID": "1",
        "SLURM_NTASKS": "2",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_TASKS_PER_NODE": "1(x2)",
    }
    assert [a.partition(":")[0] for a in from_environment(old).addresses] == ["n1", "n2"]


def test_a_step_with_one_task_is_alone_and_has_its_job() -> None:
    one = SLURM | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    assert from_environment(one) == Cluster(source="Slurm", job_id="340")


def test_the_batch_script_of_slurm_is_alone() -> None:
    batch = {"SLURM_JOB_ID": "9", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "n[1-4]"}
    assert from_environment(batch).source == "alone"


def test_horovodrun_knows_ranks_and_may_be_given_addresses() -> None:
    cluster = from_environment(HOROVODRUN)
    assert (cluster.num_workers, cluster.worker_index, cluster.local_index, cluster.local_workers) == (4, 3, 1, 2)
    assert (cluster.addresses, cluster.source) == ((), "horovodrun")
    listed = "a:1,a:2,b:1,b:2"
    assert from_environment(HOROVODRUN | {"TFDIST_WORKERS": listed}).addresses == tuple(listed.split(","))
    with refused(ConfigError, name="HOROVOD_SIZE", mentions=["HOROVOD_RANK"]):
        from_environment({"HOROVOD_RANK": "0"})
    with refused(ConfigError, name="HOROVOD_RANK", received="4"):
        from_environment({"HOROVOD_RANK": "4", "HOROVOD_SIZE": "4"})


def test_mpirun_inside_slurm_is_mpi_and_srun_with_pmi_is_slurm() -> None:
    assert from_environment(SLURM | OPEN_MPI).source == "Open MPI"
    assert from_environment(SLURM | {"PMI_RANK": "4", "PMI_SIZE": "7"}).source == "Slurm"
    assert from_environment(SLURM | {"PMIX_RANK": "4"}).source == "Slurm"
    assert from_environment(SLURM | {"PMI_RANK": "4", "PMI_SIZE": "28"}).source == "PMI"
    assert from_environment(SLURM | {"PMI_RANK": "5", "PMI_SIZE": "7"}).source == "PMI"


def test_mpi_knows_ranks_and_takes_addresses_from_tfdist_variables() -> None:
    cluster = from_environment(OPEN_MPI)
    assert (cluster.num_workers, cluster.worker_index, cluster.local_index, cluster.addresses) == (4, 1, 1, ())
    with refused(ConfigError, name="TFDIST_WORKERS", mentions=["Open MPI", "worker 1 of 4", "TFDIST_COORDINATOR"]):
        cluster.require_addresses()
    told = from_environment(OPEN_MPI | {"TFDIST_COORDINATOR": "127.0.0.1:5000"})
    assert told.require_addresses() == tuple(f"127.0.0.1:{port}" for port in range(5000, 5004))
    assert from_environment(OPEN_MPI | {"TFDIST_COORDINATOR": "[::1]:5000"}).addresses[3] == "[::1]:5003"
    listed = from_environment(PMI | {"TFDIST_WORKERS": "a:1,b:1,b:2"})
    assert (listed.addresses, listed.local_index, listed.local_workers) == (("a:1", "b:1", "b:2"), 1, 2)
    assert from_environment({"PMIX_RANK": "1", "TFDIST_NUM_WORKERS": "2"}).source == "PMIx"


@pytest.mark.parametrize(
    ("environ", "name", "received", "mentions"),
    [
        ({"TFDIST_WORKER_INDEX": "0"}, "TFDIST_WORKERS", "", ["TFDIST_WORKER_INDEX"]),
        ({"TFDIST_WORKERS": "a:1,b:1"}, "TFDIST_WORKERS", "a:1,b:1", ["TFDIST_WORKER_INDEX"]),
        (TFDIST | {"TFDIST_WORKER_INDEX": "2"}, "TFDIST_WORKER_INDEX", "2", ["from 0 to 1", "2 addresses"]),
        (TFDIST | {"TFDIST_WORKER_INDEX": "True"}, "TFDIST_WORKER_INDEX", "True", ["integer"]),
        (TFDIST | {"TFDIST_WORKERS": "a:1,"}, "TFDIST_WORKERS[1]", "", []),
        (TFDIST | {"TFDIST_WORKERS": "a:1,a:1"}, "TFDIST_WORKERS[1]", "a:1", ["TFDIST_WORKERS[0]"]),
        (TFDIST | {"TFDIST_LOCAL_INDEX": "2"}, "TFDIST_LOCAL_INDEX", "2", []),
        (TFDIST | {"TFDIST_LOCAL_WORKERS": "3"}, "TFDIST_LOCAL_WORKERS", "3", []),
        ({"SM_HOSTS": "algo-1", "SM_CURRENT_HOST": "algo-1"}, "SM_HOSTS", "algo-1", ["JSON"]),
        ({"SM_HOSTS": "[1]", "SM_CURRENT_HOST": "algo-1"}, "SM_HOSTS", "[1]", ["list"]),
        ({"SM_HOSTS": '["a", "a"]', "SM_CURRENT_HOST": "a"}, "SM_HOSTS", '["a", "a"]', ["twice"]),
        ({"SM_HOSTS": '["a"]'}, "SM_CURRENT_HOST", "", ["SM_HOSTS"]),
        (SAGEMAKER | {"SM_CURRENT_HOST": "algo-3"}, "SM_CURRENT_HOST", "algo-3", ["algo-2"]),
        (SAGEMAKER | {"TFDIST_PORT": "0"}, "TFDIST_PORT", "0", []),
        ({"JOB_COMPLETION_INDEX": "0"}, "TFDIST_K8S_WORKERS", "", ["JOB_COMPLETION_INDEX"]),
        (JOB | {"TFDIST_K8S_SERVICE": ""}, "TFDIST_K8S_SERVICE", "", []),
        (JOB | {"JOB_COMPLETION_INDEX": "2", "HOSTNAME": "train-2"}, "JOB_COMPLETION_INDEX", "2", ["from 0 to 1"]),
        (JOB | {"HOSTNAME": "train-0"}, "JOB_COMPLETION_INDEX", "1", ["HOSTNAME", "'train-0'"]),
        (STATEFUL | {"HOSTNAME": "web"}, "HOSTNAME", "web", ["-INDEX"]),
        (STATEFUL | {"HOSTNAME": "my-set-2"}, "HOSTNAME", "my-set-2", ["from 0 to 1"]),
        ({"TFDIST_K8S_SERVICE": "svc"}, "TFDIST_K8S_WORKERS", "", ["TFDIST_K8S_SERVICE"]),
        (SLURM | {"SLURM_PROCID": "7"}, "SLURM_PROCID", "7", ["7 tasks"]),
        (SLURM | {"SLURM_STEP_NODELIST": "n[1-3"}, "SLURM_STEP_NODELIST", "n[1-3", ["closed"]),
        (SLURM | {"SLURM_STEP_NODELIST": "n[1,1],a,b"}, "SLURM_STEP_NODELIST", "n[1,1],a,b", ["node n1", "twice"]),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2(x4"}, "SLURM_STEP_TASKS_PER_NODE", "2(x4", []),
        (
            SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2(x4)"},
            "SLURM_STEP_TASKS_PER_NODE",
            "[2, 2, 2, 2]",
            ["4 nodes", "7 tasks"],
        ),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "7"}, "SLURM_STEP_TASKS_PER_NODE", "[7]", ["4 nodes", "7 tasks"]),
        (SLURM | {"SLURM_JOB_ID": ""}, "SLURM_JOB_ID", "", []),
        (SLURM | {"SLURM_NODEID": "1"}, "SLURM_NODEID", "1", ["2", "--distribution"]),
        (SLURM | {"TFDIST_PORT": "65535"}, "TFDIST_PORT", "65535", ["65534"]),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE", "", ["OMPI_COMM_WORLD_RANK"]),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_RANK", "", []),
        (OPEN_MPI | {"OMPI_COMM_WORLD_RANK": "4"}, "OMPI_COMM_WORLD_RANK", "4", ["from 0 to 3"]),
        (OPEN_MPI | {"TFDIST_WORKERS": "a:1,b:1"}, "TFDIST_WORKERS", "a:1,b:1", ["4 ranks"]),
        (OPEN_MPI | {"TFDIST_COORDINATOR": "host"}, "TFDIST_COORDINATOR", "host", ["host:port"]),
        (OPEN_MPI | {"TFDIST_COORDINATOR": "a:65533"}, "TFDIST_COORDINATOR", "a:65533", ["65535"]),
        (
            OPEN_MPI | {"TFDIST_COORDINATOR": "a:1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            "TFDIST_COORDINATOR",
            "a:1",
            ["hosts", "TFDIST_WORKERS"],
        ),
        ({"PMI_RANK": "0"}, "PMI_SIZE", "", ["PMI_RANK"]),
        ({"PMIX_RANK": "0"}, "TFDIST_NUM_WORKERS", "", ["PMIx"]),
    ],
)
def test_malformed_variables_say_what_was_read(
    environ: dict[str, str], name: str, received: str, mentions: list[str]
) -> None:
    with refused(ConfigError, name=name, received=received, mentions=mentions):
        from_environment(environ)


@given(st.sampled_from([TFDIST, OPEN_MPI, PMI, SAGEMAKER, JOB, STATEFUL, SLURM]), st.data())
def test_no_value_of_a_variable_ends_in_another_error(environ: dict[str, str], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(environ)))
    junk = st.text('019-+,:[]{}"ax. ²', max_size=8)
    try:
        cluster = from_environment(environ | {name: data.draw(junk)})
    except TfdistError:
        return
    assert isinstance(cluster, Cluster)


def test_clusters_are_valid_values() -> None:
    cluster = Cluster(num_workers=2, worker_index=1, addresses=("a:1", "b:1"))
    assert cluster.task == TaskId(type="worker", index=1)
    with pytest.raises(AttributeError):
        cluster.worker_index = 0  # type: ignore[misc]
    for change in (
        {"num_workers": 0},
        {"num_workers": True},
        {"worker_index": 2},
        {"worker_index": 1.0},
        {"local_workers": 3},
        {"local_index": 1},
        {"addresses": ("a:1",)},
        {"addresses": ("a:1", "a:1")},
        {"parameter_servers": ("b:1",)},
        {"source": ""},
        {"task": TaskId(type="ps", index=0)},
        {"chief": "c:1"},
        {"chief": "a:1", "parameter_servers": ("p:1",)},
        {"chief": "c:1", "parameter_servers": ("p:1",), "task": TaskId(type="chief", index=0)},
    ):
        with pytest.raises(ConfigError):
            replace(cluster, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(("task_type", "index"), [("boss", 0), ("chief", 1), ("worker", -1), ("worker", True)])
def test_task_ids_are_valid_values(task_type: str, index: int) -> None:
    with pytest.raises(ConfigError):
        TaskId(type=task_type, index=index)
