"""Records of any kind of file as examples: plain bytes, tf.train.Example, or tf.train.SequenceExample."""

import json
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.examples.computed_examples import Columns
from tfdist.data.foreign.foreign_files import EXAMPLES, RAW, Files, Foreign
from tfdist.data.foreign.kept_index import Arrays, kept
from tfdist.data.format import example
from tfdist.data.format.data_manifest import Shard
from tfdist.data.format.schema import TEXT, Feature, Schema
from tfdist.data.sources.tfrecords import inference
from tfdist.data.sources.tfrecords.inference import Seen
from tfdist.errors import ConfigError, CorruptDataError, fields_of

_STEP = 1024  # records that are looked at in one go
_Ids = NDArray[np.int64]
_Parsed = dict[str, tuple[str, list[Any]]]


class Records(Foreign):
    """Records that a subclass reads; the schema of examples and sequences is inferred from all records."""

    def __init__(self, files: Files, shards: Sequence[Shard], content: str) -> None:
        self._content = content
        self.encoded = self.payloads if content == EXAMPLES else None
        super().__init__(files, shards, "label")

    @abstractmethod
    def payloads(self, ids: _Ids) -> list[bytes]:
        """Return the bytes of records, or raise CorruptDataError."""

    def columns(self, ids: _Ids, names: Iterable[str]) -> Columns:
        found = self.payloads(ids)
        if self._content == RAW:
            return dict.fromkeys(names, found)
        rows = [self._parsed(*row, self.schema) for row in zip(ids.tolist(), found, strict=True)]
        return {name: self._column(ids, name, rows) for name in names}

    def _column(self, ids: _Ids, name: str, rows: list[_Parsed]) -> Any:
        feature, values = self.schema[name], []
        for number, row in zip(ids.tolist(), rows, strict=True):
            try:
                values.append(example.value(name, feature, row))
            except CorruptDataError as error:
                raise self.bad(number, str(error)) from error
        is_array = feature.size is not None and feature.dtype != TEXT
        return np.stack(values) if is_array and values else values

    def _parsed(self, number: int, payload: bytes, schema: Schema | None = None) -> _Parsed:
        try:
            if self._content == EXAMPLES:
                return example.parse(payload)
            return inference.parsed(payload, schema, tells=schema is None)
        except (ConfigError, CorruptDataError) as error:
            raise self.bad(number, str(error)) from error

    def _schema(self) -> Schema:
        if self._content == RAW:
            return Schema({"record": Feature(TEXT)})

        def find() -> Arrays:
            seen = Seen()
            for begin in range(0, int(self.begins[-1]), _STEP):
                ids = np.arange(begin, min(begin + _STEP, int(self.begins[-1])))
                for number, payload in zip(ids.tolist(), self.payloads(ids), strict=True):
                    self._look(seen, number, payload)
            text = json.dumps(seen.schema(self.files.storage.url).to_json())
            return {f"schema-{self._content}": np.frombuffer(text.encode(), np.uint8)}

        (text,) = kept(self.files.as_kind(f"{self.files.kind}-{self._content}"), find).values()
        return Schema.from_json(json.loads(text.tobytes()))

    def _look(self, seen: Seen, number: int, payload: bytes) -> None:
        url = self.files.storage.url
        inference.need_one_example(payload, f"record {number} of {url}")
        found = self._parsed(number, payload)
        steps = example.sequences(payload)
        if steps and self._content == EXAMPLES:
            raise ConfigError(
                f"{url} has a tf.train.SequenceExample, whose feature list {min(steps)!r} no reader of "
                "tf.train.Example sees. Open it with records='sequences'.",
                name=min(steps),
                path=url,
            )
        if not found:
            raise ConfigError(
                f"record {number} of {url} has no feature of a tf.train.Example. Open it with records='raw' for its "
                "bytes.",
                name="records",
                path=url,
            )
        try:
            seen.add(found, url, {name: inference.shape_of(values) for name, values in steps.items()})
        except ConfigError as error:
            raise ConfigError(f"record {number}: {error}", **fields_of(error)) from error
