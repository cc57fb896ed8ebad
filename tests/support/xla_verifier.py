"""XLA's own HLO verifier, which jaxlib contains but does not bind, called through its symbol table.

jaxlib's parser makes a module without verifying it. `libjax_common.so` keeps the symbols of
`xla::HloVerifier`, so the class is built in memory of ours and run on the parsed module. Sources:
openxla/xla `xla/service/hlo_verifier.h`, the Itanium C++ ABI (names, hidden result pointer),
libstdc++ (`std::function`, `std::string`), abseil (`Status` representation), nanobind (`nb_inst`).
Every name and offset belongs to one jaxlib release; `load` raises VerifierUnavailable elsewhere.
Run it in a child process only: a failed CHECK ends the process.
"""

import ctypes
import mmap
import struct
from collections.abc import Sequence
from pathlib import Path

_ABSL = "4absl12lts_2026010713flat_hash_setISt17basic_string_viewIcSt11char_traitsIcEE"
_CTOR_ARGUMENTS = "EbbSt8functionIFbPKNS{0}_14HloInstructionEEES{1}_IFlRKNS{0}_5ShapeEEEb"
_CONSTRUCTOR = "_ZN3xla11HloVerifierC2" + _CTOR_ARGUMENTS.format("", "1")
_RUN = (
    f"_ZN3xla11HloVerifier7RunImplEPNS_9HloModuleERKN{_ABSL}NS4_18container_internal10String"
    "HashENSA_8StringEqESaIS9_EEE"
)
_SHAPE_SIZE_MANAGER = (
    f"_ZNSt14_Function_base13_Base_managerIZN3xla11HloVerifierC1{_CTOR_ARGUMENTS.format('1', '3')}"
    "Ed0_UlSB_E_E10_M_managerERSt9_Any_dataRKSG_St18_Manager_operation"
)
_SHAPE_SIZE_INVOKER = (
    "_ZNSt17_Function_handlerIFlRKN3xla5ShapeEEZNS0_11HloVerifierC1EbbSt8functionIFbPKNS0_14Hlo"
    "InstructionEEES6_IS4_EbEd0_UlS3_E_E9_M_invokeERKSt9_Any_dataS3_"
)
_SYMTAB = 2
_SYMBOL = struct.Struct("<IBBHQQ")
_OK_STATUS = 1
_VERIFIER_BYTES = 4096
"""More than sizeof(HloVerifier), which holds one pointer and a string."""


class VerifierUnavailable(Exception):
    """This jaxlib does not have the verifier where it is looked for."""


def _symbol_values(library: Path, names: Sequence[str]) -> dict[str, int]:
    """Return the virtual address of each symbol in an ELF-64 file's full symbol table."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        (sections_at,) = struct.unpack_from("<Q", data, 0x28)
        entry_bytes, count, _ = struct.unpack_from("<HHH", data, 0x3A)

        def section(index: int) -> tuple[int, int, int, int]:
            at = sections_at + index * entry_bytes
            (kind,) = struct.unpack_from("<I", data, at + 4)
            offset, size = struct.unpack_from("<QQ", data, at + 0x18)
            (link,) = struct.unpack_from("<I", data, at + 0x28)
            return kind, offset, size, link

        tables = [s for s in map(section, range(count)) if s[0] == _SYMTAB]
        if not tables:
            raise VerifierUnavailable("libjax_common.so has no symbol table")
        _, offset, size, link = tables[0]
        _, text_at, text_bytes, _ = section(link)
        wanted = {}
        for name in names:
            at = data.find(b"\0" + name.encode() + b"\0", text_at, text_at + text_bytes)
            if at < 0:
                raise VerifierUnavailable(f"symbol {name} is not in libjax_common.so")
            wanted[at + 1 - text_at] = name
        symbols = _SYMBOL.iter_unpack(data[offset : offset + size])
        return {wanted[s[0]]: s[4] for s in symbols if s[0] in wanted}


def _load_address(library: Path) -> int:
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(library.name):
            return int(line.split("-")[0], 16)
    raise VerifierUnavailable(f"{library.name} is not loaded")


class XlaVerifier:
    """One `xla::HloVerifier` that ignores layouts and refuses mixed precision, as XLA's default."""

    def __init__(self, library: Path) -> None:
        names = (_CONSTRUCTOR, _RUN, _SHAPE_SIZE_MANAGER, _SHAPE_SIZE_INVOKER)
        values = _symbol_values(library, names)
        base = _load_address(library)
        address = [base + values[name] for name in names]
        pointer, flag = ctypes.c_void_p, ctypes.c_bool
        construct = ctypes.CFUNCTYPE(None, pointer, flag, flag, pointer, pointer, flag)(address[0])
        self._run = ctypes.CFUNCTYPE(pointer, pointer, pointer, pointer, pointer)(address[1])
        # std::function is 16 bytes of data, a manager and an invoker; empty is all zero.
        self._no_function = ctypes.create_string_buffer(32)
        self._shape_size = (ctypes.c_uint64 * 4)(0, 0, address[2], address[3])
        self._object = ctypes.create_string_buffer(_VERIFIER_BYTES)
        self._all_threads = ctypes.create_string_buffer(256)
        layout_sensitive = mixed_precision = deadlock_check = False
        construct(
            ctypes.addressof(self._object),
            layout_sensitive,
            mixed_precision,
            ctypes.addressof(self._no_function),
            ctypes.addressof(self._shape_size),
            deadlock_check,
        )

    def fault(self, module: object) -> str | None:
        """Return the verifier's message about a jaxlib HloModule, or None where it accepts."""
        # nanobind: after the object head, the offset of the slot that holds the C++ pointer.
        (slot,) = struct.unpack("<i", ctypes.string_at(id(module) + 16, 4))
        (at,) = struct.unpack("<Q", ctypes.string_at(id(module) + slot, 8))
        result = ctypes.create_string_buffer(64)
        self._run(
            ctypes.addressof(result),
            ctypes.addressof(self._object),
            at,
            ctypes.addressof(self._all_threads),
        )
        (status,) = struct.unpack_from("<Q", result.raw)
        if status == _OK_STATUS:
            return None
        # A status that is not OK points to {int32 references, int32 code, std::string message}.
        _, _, text_at, text_bytes = struct.unpack("<iiQQ", ctypes.string_at(status & ~3, 24))
        return ctypes.string_at(text_at, text_bytes).decode(errors="replace")


def load(library: Path) -> XlaVerifier:
    """Return the verifier of a loaded `libjax_common.so`; VerifierUnavailable where it is not."""
    return XlaVerifier(library)
