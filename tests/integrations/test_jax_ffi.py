"""Tests of the declarations of XLA's foreign function interface: they are compared with the header of the installed jaxlib."""

import os
import re
import shutil
import subprocess

import pytest
from cases import HAS_CHECKOUT, ROOT

jax = pytest.importorskip("jax")

HEADER = ROOT / "third_party/xla/xla_ffi.h"
COMPILER = shutil.which(os.environ.get("CC", "cc"))
if COMPILER is None or not HAS_CHECKOUT:
    pytest.skip("needs a checkout, and a C compiler", allow_module_level=True)

# convt's structure -> XLA's, and the fields in which they are compared
STRUCTURES = {
    "XlaExtension": ("XLA_FFI_Extension_Base", {"size": "struct_size", "type": "type", "next": "next"}),
    "XlaVersion": ("XLA_FFI_Api_Version", {"major": "major_version", "minor": "minor_version"}),
    "XlaApi": ("XLA_FFI_Api", {"version": "api_version", "entries": "XLA_FFI_Error_Create"}),
    "XlaTypeId": ("XLA_FFI_TypeId", {"id": "type_id"}),
    "XlaTypeInfo": ("XLA_FFI_TypeInfo", {"destroy": "deleter"}),
    "XlaMetadata": ("XLA_FFI_Metadata", {"version": "api_version", "traits": "traits", "state_type": "state_type_id"}),
    "XlaMetadataExtension": ("XLA_FFI_Metadata_Extension", {"metadata": "metadata"}),
    "XlaSpan": ("XLA_FFI_ByteSpan", {"text": "ptr", "length": "len"}),
    "XlaBuffer": ("XLA_FFI_Buffer", {"dtype": "dtype", "data": "data", "rank": "rank", "sizes": "dims"}),
    "XlaBuffers": ("XLA_FFI_Args", {"count": "size", "types": "types", "values": "args"}),
    "XlaBuffers ": ("XLA_FFI_Rets", {"count": "size", "types": "types", "values": "rets"}),
    "XlaAttributes": ("XLA_FFI_Attrs", {"count": "size", "types": "types", "names": "names", "values": "attrs"}),
    "XlaCall": ("XLA_FFI_CallFrame", {
        "api": "api", "context": "ctx", "stage": "stage", "arguments": "args", "results": "rets", "attributes": "attrs",
    }),
    "XlaErrorCreate": ("XLA_FFI_Error_Create_Args", {"message": "message", "code": "errc"}),
    "XlaErrorDestroy": ("XLA_FFI_Error_Destroy_Args", {"error": "error"}),
    "XlaTypeRegister": ("XLA_FFI_Type_Register_Args", {"name": "name", "id": "type_id", "info": "type_info"}),
    "XlaState": ("XLA_FFI_State_Get_Args", {"context": "ctx", "stage": "stage", "id": "type_id", "state": "state"}),
    "XlaState ": ("XLA_FFI_State_Set_Args", {"context": "ctx", "stage": "stage", "id": "type_id", "state": "state"}),
    "XlaSchedule": ("XLA_FFI_ThreadPool_Schedule_Args", {"context": "ctx", "task": "task", "data": "data"}),
    "XlaThreads": ("XLA_FFI_ThreadPool_NumThreads_Args", {"context": "ctx", "threads": "num_threads"}),
}  # fmt: skip
CONSTANTS = {
    "XLA_METADATA": "XLA_FFI_Extension_Metadata", "XLA_INSTANTIATE": "XLA_FFI_ExecutionStage_INSTANTIATE",
    "XLA_EXECUTE": "XLA_FFI_ExecutionStage_EXECUTE",
    "XLA_STRING": "XLA_FFI_AttrType_STRING", "XLA_INTERNAL": "XLA_FFI_Error_Code_INTERNAL",
    "XLA_EXHAUSTED": "XLA_FFI_Error_Code_RESOURCE_EXHAUSTED", "XLA_F16": "XLA_FFI_DataType_F16",
    "XLA_F32": "XLA_FFI_DataType_F32", "XLA_F64": "XLA_FFI_DataType_F64", "XLA_BF16": "XLA_FFI_DataType_BF16",
}  # fmt: skip
ENTRIES = {
    "xla_error_create": "XLA_FFI_Error_Create", "xla_error_destroy": "XLA_FFI_Error_Destroy",
    "xla_type_register": "XLA_FFI_Type_Register", "xla_state_set": "XLA_FFI_State_Set", "xla_state_get": "XLA_FFI_State_Get",
    "xla_schedule": "XLA_FFI_ThreadPool_Schedule", "xla_threads": "XLA_FFI_ThreadPool_NumThreads",
}  # fmt: skip


def compiled(folder, text):
    """Compile convt's header with ``text`` in its place beside XLA's, and return the compiler's output, "" if all agrees."""
    (folder / "xla_ffi.h").write_text(text)
    lines = ['#include "xla/ffi/api/c_api.h"', '#include "xla_ffi.h"']
    check = lambda condition, what: lines.append(f'_Static_assert({condition}, "{what}");')  # noqa: E731
    for ours, (theirs, fields) in STRUCTURES.items():
        ours = ours.strip()
        for field, other in fields.items():
            check(f"offsetof({ours}, {field}) == offsetof({theirs}, {other})", f"{ours}.{field}")
            if field != "entries":
                check(f"sizeof ((({ours} *)0)->{field}) == sizeof ((({theirs} *)0)->{other})", f"size of {ours}.{field}")
    for ours, theirs in CONSTANTS.items():
        check(f"(int){ours} == (int){theirs}", ours)
    check("XLA_MAJOR == XLA_FFI_API_MAJOR && XLA_MINOR <= XLA_FFI_API_MINOR", "version")
    places = {name: int(place) for place, name in re.findall(r"F\((\d+), (\w+),", text)}
    assert places.keys() == ENTRIES.keys()
    for ours, theirs in ENTRIES.items():
        place = f"offsetof(XlaApi, entries) + {places[ours]} * sizeof(XlaEntry)"
        check(f"offsetof(XLA_FFI_Api, {theirs}) == {place}", f"place of {ours}")
    (folder / "compare.c").write_text("\n".join(lines) + "\n")
    folders = ["-I", jax.ffi.include_dir(), "-I", str(folder)]
    command = [COMPILER, "-std=gnu11", "-fsyntax-only", *folders, str(folder / "compare.c")]
    return subprocess.run(command, capture_output=True, text=True).stderr


def test_the_declarations_are_those_of_jaxlib(tmp_path):
    assert compiled(tmp_path, HEADER.read_text()) == ""


@pytest.mark.parametrize("change", [
    ("F(12, xla_threads", "F(13, xla_threads"), ("XLA_EXECUTE = 3", "XLA_EXECUTE = 2"), ("XLA_MAJOR 0", "XLA_MAJOR 1"),
    ("int dtype; void *data", "void *data; int dtype"),
    ("const XlaApi *api;\n    XlaContext *context;", "XlaContext *context;\n    const XlaApi *api;"),
])  # fmt: skip
def test_a_wrong_declaration_is_found(change, tmp_path):
    text = HEADER.read_text()
    assert change[0] in text and "static assertion failed" in compiled(tmp_path, text.replace(*change))
