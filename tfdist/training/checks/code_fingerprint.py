"""A digest of code and of everything that it can reach, equal in two processes exactly if the code does the same.

A function is its bytecode, constants, defaults and closure, and the globals and attributes of modules that it names; a
class is what its bases define; an object is its class and its attributes. Code of libraries is represented by the
version of its distribution. No address, no order of a set, and no path of a file goes in.

What a digest cannot represent raises `OpaqueError`: a file, a thread, a generator of random numbers, `open` or `exec`,
the environment. No digest is better than one that stays the same while the code does something else.

TensorFlow is not loaded here; the caller describes its objects.

Example:
    >>> def of(factor):
    ...     return digest_of([lambda x: factor * x])
    >>> of(2) == of(2), of(2) == of(3)
    (True, False)
"""

import dis
import enum
import functools
import hashlib
import importlib.metadata
import site
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np

#: writes an object that the caller knows into a digest, and returns True; False leaves the object to this file
Describe = Callable[[Any, "Digest"], bool]

# Modules of Python whose functions depend on their arguments alone, or say something and change nothing.
_HARMLESS = {"abc", "argparse", "bisect", "builtins", "cmath", "collections", "contextlib", "copy", "dataclasses"}
_HARMLESS |= {"decimal", "enum", "fractions", "functools", "heapq", "itertools", "logging", "math", "numbers"}
_HARMLESS |= {"operator", "re", "statistics", "string", "textwrap", "types", "typing", "warnings"}
_HARMLESS |= {"_collections", "_collections_abc", "_functools", "_operator", "_thread"}
# Builtins that reach objects that no name in the code shows.
_REACH_FAR = {"__import__", "compile", "eval", "exec", "globals", "input", "locals", "open"}
_OF_DEFINITIONS = {"__dict__", "__weakref__", "__module__", "__doc__", "__annotations__", "__abstractmethods__"}
_OF_DEFINITIONS |= {"_abc_impl", "__static_attributes__", "__firstlineno__", "__dataclass_params__", "__annotate__"}
_OF_DEFINITIONS |= {"__dataclass_fields__", "__match_args__", "__orig_bases__", "__parameters__", "__annotate_func__"}
_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_CELLS = ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type, functools.partial)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented))
# Which of these are one object depends on how a module was compiled.
_WITHOUT_IDENTITY = (*_PLAIN, tuple, frozenset, range, slice, types.MethodType, functools.partial)
_MOST_BYTES = 1 << 26  # of an array that is digested
_MOST_PARTS = 200_000
_MISSING = object()


class OpaqueError(Exception):
    """Raised if code reaches an object that a digest cannot represent, which the text names."""


class Digest:
    """A digest that is being made."""

    def __init__(self, describe: Describe = lambda value, digest: False) -> None:
        self._hash = hashlib.sha256()
        self._describe = describe
        self._places: dict[int, int] = {}
        self._alive: list[Any] = []  # so that no identity is given to another object
        self._parts = 0

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def mark(self, *parts: object) -> None:
        """Write texts, numbers or bytes unambiguously."""
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise OpaqueError("it reaches more than can be compared")
        for part in parts:
            data = part if isinstance(part, bytes) else repr(part).encode()
            self._hash.update(f"{type(part).__name__}:{len(data)}:".encode() + data)

    def write(self, value: Any) -> None:
        if type(value) in _PLAIN:
            self.mark(value)
            return
        if isinstance(value, _WITHOUT_IDENTITY):
            self._write_new(value)
            return
        place = self._places.setdefault(id(value), len(self._places))
        if place < len(self._alive):
            self.mark("seen", place)
            return
        self._alive.append(value)
        self._write_new(value)

    def _write_new(self, value: Any) -> None:
        if self._describe(value, self):
            return
        if not any(write(value) for write in (self._write_code, self._write_member, self._write_data)):
            self._write_object(value)

    def _write_code(self, value: Any) -> bool:
        if isinstance(value, types.ModuleType):
            self._write_module(value)
        elif isinstance(value, types.FunctionType):
            self._write_function(value)
        elif isinstance(value, types.MethodType):
            self.mark("method")
            self.write(value.__func__)
            self.write(value.__self__)
        elif isinstance(value, functools.partial):
            self.mark("partial")
            self._write_all([value.func, value.args, value.keywords])
        elif isinstance(value, type):
            self._write_class(value)
        elif isinstance(value, (types.GenericAlias, types.UnionType)) or type(value).__module__ == "typing":
            self.mark("type", str(value))
        elif type(value).__module__ == "functools" and hasattr(value, "__wrapped__"):
            self.mark("wrapped", type(value).__qualname__)
            self.write(value.__wrapped__)
        elif isinstance(value, (types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodDescriptorType)):
            self._write_builtin(value)
        elif isinstance(value, types.CodeType):
            self._write_bytecode(value)
        else:
            return False
        return True

    def _write_member(self, value: Any) -> bool:
        if isinstance(value, (staticmethod, classmethod)):
            self.mark(type(value).__name__)
            self.write(value.__func__)
        elif isinstance(value, property):
            self.mark("property")
            self._write_all([value.fget, value.fset, value.fdel])
        elif isinstance(value, functools.cached_property):
            self.mark("cached property")
            self.write(value.func)
        elif isinstance(value, (types.MemberDescriptorType, types.GetSetDescriptorType)):
            self.mark("slot", value.__name__)
        else:
            return False
        return True

    def _write_data(self, value: Any) -> bool:
        if isinstance(value, enum.Enum):
            self.mark("member", value.name)
            self._write_all([type(value), value.value])
        elif isinstance(value, np.ndarray):
            self._write_array(value)
        elif isinstance(value, np.generic):
            self._write_array(np.asarray(value))
        elif isinstance(value, np.dtype):
            self.mark("dtype", str(value))
        elif isinstance(value, (*_PLAIN, dict, types.MappingProxyType, list, tuple, deque, set, frozenset)):
            self._write_content(value)
            if not is_of_library(type(value)):
                self._write_object(value)
        elif isinstance(value, (range, slice, PurePath)) or type(value).__module__ == "re":
            self.mark(type(value).__name__, str(value))
        else:
            return False
        return True

    def _write_content(self, value: Any) -> None:
        name = type(value).__qualname__
        if isinstance(value, (dict, types.MappingProxyType)):
            self.mark("mapping", name, len(value))
            self.write(getattr(value, "default_factory", None))
            for key, one in value.items():
                self._write_all([key, one])
        elif isinstance(value, (list, tuple, deque)):
            self.mark("sequence", name, len(value))
            self._write_all(value)
        elif isinstance(value, (set, frozenset)):
            if not all(type(one) in _PLAIN for one in value):
                raise OpaqueError("it reaches a set of objects, which has another order in each process")
            self.mark("set", name, *sorted(f"{type(one).__name__} {one!r}" for one in value))
        else:
            self.mark(
                next(kind.__repr__(value) for kind in (int, float, complex, str, bytes) if isinstance(value, kind))
            )

    def _write_all(self, values: Sequence[Any] | deque[Any]) -> None:
        for value in values:
            self.write(value)

    def _write_array(self, value: np.ndarray) -> None:
        if value.dtype.hasobject or value.nbytes > _MOST_BYTES:
            raise OpaqueError(f"it reaches an array of {value.nbytes} bytes of {value.dtype}")
        self.mark("array", str(value.dtype), value.shape, np.ascontiguousarray(value).tobytes())

    def _write_module(self, value: types.ModuleType) -> None:
        library = _library_of_module(value.__name__)
        if library is None:
            raise OpaqueError(f"it uses the module {value.__name__!r} as a whole")
        self._write_library(library, value.__name__)

    def _write_library(self, library: str, name: str) -> None:
        if library == "python" and name.split(".")[0] not in _HARMLESS:
            raise OpaqueError(f"it uses {name}")
        self.mark("library", library, name)

    def _write_builtin(self, value: Any) -> None:
        owner = getattr(value, "__self__", None)
        module = getattr(value, "__module__", None) or getattr(getattr(value, "__objclass__", None), "__module__", "")
        if value.__name__ in _REACH_FAR and module in ("builtins", "io", "_io"):
            raise OpaqueError(f"it calls {value.__name__}")
        self._write_library(_library_of_module(module or "builtins") or "python", module or "builtins")
        self.mark("builtin", value.__qualname__)
        if owner is not None and not isinstance(owner, types.ModuleType):
            self.write(owner)

    def _write_function(self, value: types.FunctionType) -> None:
        library = _library_of_file(value.__code__.co_filename)
        if library is not None:
            self._write_library(library, f"{value.__module__}.{value.__qualname__}")
            self.write(getattr(value, "__wrapped__", None))
            for cell in value.__closure__ or ():  # a decorator keeps there what it decorates
                content = _content(cell)
                if isinstance(content, _FUNCTIONS):
                    self.write(content)
            return
        self.mark("function")
        self._write_all([value.__defaults__, value.__kwdefaults__, dict(sorted(vars(value).items()))])
        cells = dict(zip(value.__code__.co_freevars, value.__closure__ or (), strict=True))
        for name, cell in cells.items():
            content = _content(cell)
            if not isinstance(content, types.ModuleType):  # of a module, what the code takes from it
                self.mark("cell", name)
                self.write(None if content is _MISSING else content)
        self._write_bytecode(value.__code__)
        self._write_reached(value.__code__, value.__globals__, cells)

    def _write_bytecode(self, code: types.CodeType) -> None:
        self.mark("code", code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        self.mark(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self.mark(getattr(code, "co_exceptiontable", b""))
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._write_bytecode(constant)
            else:
                self.write(constant)

    def _write_reached(self, code: types.CodeType, given: Mapping[str, Any], cells: Mapping[str, Any]) -> None:
        """Write the globals that code names, and the attributes that it takes from modules."""
        for name, value, attributes in _loaded(code, given, cells):
            path = name
            for attribute in attributes:
                if not isinstance(value, types.ModuleType) or _library_of_module(value.__name__) is not None:
                    break
                path, value = f"{path}.{attribute}", getattr(value, attribute, _MISSING)
            self.mark("global", path)
            if value is not _MISSING:
                self.write(value)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._write_reached(constant, given, cells)

    def _write_class(self, value: type) -> None:
        library = _library_of_module(value.__module__)
        if library is not None:
            self._write_library(library, f"{value.__module__}.{value.__qualname__}")
            return
        self.mark("class", value.__qualname__)
        self._write_all([type(value), list(value.__bases__)])
        for name, one in vars(value).items():
            if name not in _OF_DEFINITIONS:
                self.mark("defines", name)
                self.write(one)

    def _write_object(self, value: Any) -> None:
        kind = type(value)
        libraries = [base for base in kind.__mro__ if is_of_library(base)]
        is_known = (kind.__module__, kind.__qualname__) in _KNOWN_OBJECTS
        # what a class of a library keeps elsewhere than in attributes is out of sight
        hides = kind in libraries or not {base.__module__.split(".")[0] for base in libraries} <= _HARMLESS
        if hides and not is_known:
            raise OpaqueError(f"it reaches an object of {kind.__module__}.{kind.__qualname__}")
        self.mark("object", kind.__qualname__)
        if kind.__qualname__ == "Logger":
            self.mark(value.name)
            return
        self.write(kind)
        for name, one in sorted(attributes_of(value).items()):
            self.mark("attribute", name)
            self.write(one)


# of Python's library, and no more than their attributes
_KNOWN_OBJECTS = {("types", "SimpleNamespace"), ("argparse", "Namespace"), ("logging", "Logger")}
_KNOWN_OBJECTS |= {("builtins", "object")}


def digest_of(values: Sequence[Any], *, describe: Describe = lambda value, digest: False) -> str:
    """Return the digest of values and of everything that they reach, as 64 hexadecimal digits."""
    digest = Digest(describe)
    for value in values:
        digest.write(value)
    return digest.hexdigest()


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object itself, in its dictionary and in slots."""
    slots = [name for base in type(value).__mro__ for name in _listed(vars(base).get("__slots__", ()))]
    found = {name: getattr(value, name) for name in slots if name != "__dict__" and hasattr(value, name)}
    return found | dict(getattr(value, "__dict__", {}))


def is_of_library(value: Any) -> bool:
    """True for a class or a function of Python or of a library."""
    if isinstance(value, types.FunctionType):
        return _library_of_file(value.__code__.co_filename) is not None
    return _library_of_module(getattr(value, "__module__", None) or "builtins") is not None


def _listed(slots: Any) -> Sequence[str]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it has none yet
        return _MISSING


def _loaded(
    code: types.CodeType, given: Mapping[str, Any], cells: Mapping[str, Any]
) -> Iterator[tuple[str, Any, list[str]]]:
    """Yield each name that code loads from outside, its value, and the chain of attributes taken from it."""
    instructions = list(dis.get_instructions(code))
    of_builtins = vars(sys.modules["builtins"])
    for place, one in enumerate(instructions):
        if one.opname.startswith(("STORE_GLOBAL", "DELETE_GLOBAL")):
            raise OpaqueError(f"it changes the global {one.argval!r}")
        if one.opname == "IMPORT_NAME" and _library_of_module(one.argval) is None:
            raise OpaqueError(f"it imports {one.argval!r} while it runs")
        if one.opname == "IMPORT_NAME":
            yield one.argval, sys.modules.get(one.argval.split(".")[0], _MISSING), []
        if one.opname in _GLOBALS:
            value = given.get(one.argval, of_builtins.get(one.argval, _MISSING))
        elif one.opname in _CELLS and one.argval in cells:
            value = _content(cells[one.argval])
            if not isinstance(value, types.ModuleType):  # other cells are written with the function
                continue
        else:
            continue
        attributes = []
        for following in instructions[place + 1 :]:
            if following.opname not in _ATTRIBUTES:
                break
            attributes.append(following.argval)
        yield one.argval, value, attributes


def _library_of_module(name: str) -> str | None:
    """Return the library of a module, with its version; None for a module of the user's."""
    top = name.split(".")[0]
    if top in sys.stdlib_module_names:
        return "python"
    if top == "__main__":
        return None
    module = sys.modules.get(top)
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    file = next((str(place) for place in places if place), None)
    return None if file is None else _library_of_file(file, top)


@functools.cache
def _library_of_file(file: str, top: str = "") -> str | None:
    path = Path(file)
    for folder in _package_folders():
        if path.is_relative_to(folder):
            name = top or Path(path.relative_to(folder).parts[0]).stem
            return f"{name} {_version(name)}"
    if path.is_relative_to(_OWN):
        return "tfdist"
    is_pythons = file.startswith("<frozen ") or any(path.is_relative_to(place) for place in _standard_folders())
    return "python" if is_pythons else None


_OWN = Path(__file__).parents[2]


@functools.cache
def _package_folders() -> tuple[Path, ...]:
    names = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return tuple(Path(name) for name in sorted({*names, *site.getsitepackages(), site.getusersitepackages()}))


@functools.cache
def _standard_folders() -> tuple[Path, ...]:
    return tuple(Path(name) for name in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})


@functools.cache
def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        version = getattr(sys.modules.get(name), "__version__", None)
        if not isinstance(version, str):
            raise OpaqueError(f"it uses the library {name}, whose version is not known") from None
        return version
