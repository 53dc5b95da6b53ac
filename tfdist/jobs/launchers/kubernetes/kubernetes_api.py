"""The requests of a submission to the Kubernetes API, by the client library."""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tfdist.errors import ConfigError, TfdistError
from tfdist.jobs.launchers.kubernetes.pods import CONTAINER, Values, load

_CONFIGURATION = "~/.kube/config"
_ANSWER_SECONDS = 20.0
_WATCH_SECONDS = 60  # after which the API server ends a watch, and another is begun
_SILENCE_SECONDS = 600.0  # of a log, after which it is asked for again
_PLURALS = {"Job": "jobs", "JobSet": "jobsets", "TrainJob": "trainjobs"}
_CURES = {
    "Job": "",
    "JobSet": " Install JobSet (jobset.sigs.k8s.io), or leave --kind out.",
    "TrainJob": " Install Kubeflow's Trainer v2, or leave --kind out.",
}
_RAW = {"_preload_content": False, "_request_timeout": _ANSWER_SECONDS}  # read as JSON here, and not by the library
_FORBIDDEN = (401, 403)
_CONFLICT = 409


class Cluster:
    """The namespace of a job on the cluster that is configured for kubectl."""

    def __init__(self, namespace: str | None) -> None:
        self._library = library = load()
        configuration = library.client.Configuration()
        configured = self._configured(configuration)
        self.namespace = namespace or configured or "default"
        configuration.retries = False  # urllib3 would repeat unanswered requests three times, each as long
        api = library.client.ApiClient(configuration)
        self._core = library.client.CoreV1Api(api)
        self._owners = library.client.CustomObjectsApi(api)
        self._answers: set[Any] = set()  # that are read, maybe for long
        self._is_over = False
        with self._errors(f"the API server {configuration.host}"):
            library.client.VersionApi(api).get_code(**_RAW)

    def create(self, made: Values) -> Values:
        """Create an object, and return it. Fields that the cluster does not know are an error."""
        kind = made["kind"]
        options = {"field_validation": "Strict", **_RAW}
        with self._errors(f"{kind} {made['metadata']['name']}", missing=_CURES.get(kind, "")):
            if kind in _PLURALS:
                return _values(self._owners.create_namespaced_custom_object(*self._at(made), made, **options))
            creates = {
                "Service": self._core.create_namespaced_service,
                "Secret": self._core.create_namespaced_secret,
                "ConfigMap": self._core.create_namespaced_config_map,
            }
            return _values(creates[kind](self.namespace, made, **options))

    def start(self, owner: Values) -> None:
        with self._errors(f"{owner['kind']} {owner['metadata']['name']}"):
            self._owners.patch_namespaced_custom_object(
                *self._named(owner),
                {"spec": {"suspend": False}},
                _content_type="application/merge-patch+json",
                _request_timeout=_ANSWER_SECONDS,
            )

    def look(self, owner: Values) -> Values | None:
        try:
            found = _values(self._owners.get_namespaced_custom_object(*self._named(owner), **_RAW))
        except self._library.client.ApiException as error:
            if error.status == 404:
                return None
            raise
        # another job of the same name is not this submission's
        return found if found["metadata"]["uid"] == owner["metadata"]["uid"] else None

    def complaints(self, owner: Values) -> list[str]:
        """Return the reasons why pods could not be created, such as a quota; the newest last."""
        found = self._core.list_namespaced_event(self.namespace, field_selector="reason=FailedCreate", **_RAW)
        name = owner["metadata"]["name"]
        names, since = {name, f"{name}-{CONTAINER}-0"}, owner["metadata"]["creationTimestamp"]
        ours = [
            (moment, one["message"])
            for one in _values(found)["items"]
            if one.get("message")
            and one["involvedObject"].get("name") in names
            and (moment := one.get("lastTimestamp") or one.get("eventTime") or since) >= since
        ]
        return [message for _, message in sorted(ours, key=lambda one: one[0])]

    def pods(self, selector: str, changed: Callable[[str, Values], None], ended: Callable[[], bool]) -> None:
        """Report each pod of a job, and each change, until `ended` or until the server ends the watch."""
        listed = _values(self._core.list_namespaced_pod(self.namespace, label_selector=selector, **_RAW))
        for pod in listed["items"]:
            changed("there", pod)
        answer = self._core.list_namespaced_pod(
            self.namespace,
            label_selector=selector,
            resource_version=listed["metadata"]["resourceVersion"],
            watch=True,
            timeout_seconds=_WATCH_SECONDS,
            **{**_RAW, "_request_timeout": _WATCH_SECONDS + _ANSWER_SECONDS},
        )
        with self._read(answer):
            for line in answer:
                try:
                    event = json.loads(line)
                except ValueError:  # a server or a proxy has ended the watch within a line
                    return
                if event["type"] == "ERROR" or ended():  # the requested version is too old
                    return
                changed("gone" if event["type"] == "DELETED" else "there", event["object"])

    def log(self, pod: str) -> Iterator[bytes]:
        """Yield a pod's log from its beginning, until the container ends."""
        options = {**_RAW, "_request_timeout": (_ANSWER_SECONDS, _SILENCE_SECONDS)}
        answer = self._core.read_namespaced_pod_log(pod, self.namespace, container=CONTAINER, follow=True, **options)
        with self._read(answer):
            while data := answer.read1(1 << 16):
                yield data

    def delete(self, owner: Values, *, at_once: bool = False) -> None:
        """Delete an owner, its pods first: with SIGTERM and the grace period, or at once."""
        for_pods: Mapping[str, Any] = {"grace_period_seconds": 0} if at_once else {}
        try:
            self._owners.delete_namespaced_custom_object(
                *self._named(owner), propagation_policy="Foreground", _request_timeout=_ANSWER_SECONDS
            )
            if at_once:
                self._core.delete_collection_namespaced_pod(
                    self.namespace, label_selector=owner["selector"], _request_timeout=_ANSWER_SECONDS, **for_pods
                )
        except self._library.client.ApiException as error:
            if error.status != 404:
                raise

    def end(self) -> None:
        """End reads in other threads, which would otherwise delay the end of the process."""
        self._is_over = True
        for answer in list(self._answers):
            _shut(answer)

    @contextlib.contextmanager
    def _read(self, answer: Any) -> Iterator[None]:
        self._answers.add(answer)
        try:
            if self._is_over:
                _shut(answer)
            with contextlib.closing(answer):
                yield
        finally:
            self._answers.discard(answer)

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        """Errors on the way to the API server that may not occur again."""
        return (self._library.client.ApiException, *_transport_errors())

    def _configured(self, configuration: Any) -> str | None:
        """Load the configuration; return its namespace."""
        config = self._library.config
        path = os.environ.get("KUBECONFIG") or _CONFIGURATION  # read now, and not when the library was imported
        try:
            config.load_kube_config(path, client_configuration=configuration)
            _, active = config.list_kube_config_contexts(path)
            found: str | None = active["context"].get("namespace")
            return found
        except config.ConfigException as error:
            try:
                config.load_incluster_config(client_configuration=configuration)
            except config.ConfigException:
                raise ConfigError(
                    f"--engine kubernetes finds no cluster: {error} Name a configuration as for kubectl: export "
                    "KUBECONFIG=PATH; --dry-run prints the manifests without one."
                ) from error
            return None

    def _at(self, owner: Values) -> tuple[str, str, str, str]:
        group, _, version = owner["apiVersion"].partition("/")
        return group, version, self.namespace, _PLURALS[owner["kind"]]

    def _named(self, owner: Values) -> tuple[str, ...]:
        return (*self._at(owner), owner["metadata"]["name"])

    @contextlib.contextmanager
    def _errors(self, what: str, *, missing: str = "") -> Iterator[None]:
        try:
            yield
        except self._library.client.ApiException as error:
            raise TfdistError(f"{what}: {_refused(error, missing)}") from error
        except _transport_errors() as error:
            raise TfdistError(f"{what} does not answer ({error}). Try: kubectl version") from error


def _shut(answer: Any) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # it has ended, or urllib3 is older than 2.3
        answer.shutdown()


def _values(answer: Any) -> Values:
    try:
        found: Values = json.loads(answer.data)
    except ValueError as error:  # as `failures` has it: a proxy may say something else for a while
        raise ConnectionError(f"it has said something else than JSON ({error})") from error
    return found


def _transport_errors() -> tuple[type[Exception], ...]:
    import urllib3

    return (urllib3.exceptions.HTTPError, OSError)


def said(error: Any) -> str:
    """Return the message of an error of the API, without parts that differ each time."""
    message = re.sub(r"0x[0-9a-f]+", "0x...", str(getattr(error, "reason", None) or error))
    with contextlib.suppress(AttributeError, ValueError, TypeError, KeyError):
        message = json.loads(error.body)["message"]
    return str(message)


def _refused(error: Any, missing: str) -> str:
    message = said(error)
    if error.status in _FORBIDDEN:
        return f"you may not: {message}. Try: kubectl auth can-i create jobs"
    if error.status == _CONFLICT:
        return f"{message}. Take another --name, or delete that one first"
    is_unknown = error.status == 404 and "namespaces " not in message  # otherwise the namespace is missing
    return f"the cluster does not take it: {message}.{missing if is_unknown else ''}"


def owned(made: Values, owner: Mapping[str, Any]) -> Values:
    about = owner["metadata"]
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": about["name"], "uid": about["uid"]}
    return {**made, "metadata": {**made["metadata"], "ownerReferences": [reference]}}
