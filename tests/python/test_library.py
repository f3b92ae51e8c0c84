"""The structs of the package against the public header, and how the library is found."""
import inspect
import os
import re
import subprocess
import sys

import pytest

from htransformer import _library
import htransformer

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
STRUCTS = {"ht_allocator": _library.Allocator, "ht_context_desc": _library.ContextDesc,
           "ht_device_info": _library.DeviceInfo, "ht_attention_desc": _library.AttentionDesc,
           "ht_attention_need": _library.AttentionNeed, "ht_tensor": _library.Tensor,
           "ht_attention_args": _library.AttentionArgs,
           "ht_attention_grads": _library.AttentionGrads}
TYPES = {"size_t": "c_ulong", "int": "c_int", "int64_t": "c_long", "uint64_t": "c_ulong",
         "uint32_t": "c_uint", "double": "c_double", "ht_kind": "c_int", "ht_query": "c_int",
         "ht_dtype": "c_int", "void *": "c_void_p", "const void *": "c_void_p",
         "const char *": "c_char_p", "const int32_t *": "c_void_p", "const uint8_t *": "c_void_p",
         "ht_tensor": "Tensor", "ht_allocator": "Allocator"}


def header():
    with open(os.path.join(ROOT, "include", "htransformer.h")) as file:
        return re.sub(r"/\*.*?\*/|//[^\n]*", "", file.read(), flags=re.S)


def fields_in_header(text, name):
    body = re.search(r"typedef struct %s \{(.*?)\n\} %s;" % (name, name), text, re.S).group(1)
    fields = []
    for line in body.split(";"):
        pointer = re.match(r"\s*(?:void \*|void )\(\*(\w+)\)\(.*\)\s*$", line, re.S)
        plain = re.match(r"\s*([\w ]+?[ *]+)(\w+)\s*$", line, re.S)
        if pointer:
            fields.append((pointer.group(1), "c_void_p"))
        elif plain:
            fields.append((plain.group(2), TYPES[plain.group(1).strip()]))
    return fields


@pytest.mark.parametrize("name", sorted(STRUCTS))
def test_struct_mirrors_header(name):
    ours = [(field, kind.__name__) for field, kind in STRUCTS[name]._fields_]
    assert ours == fields_in_header(header(), name)


@pytest.mark.parametrize("prefix, table", [("HT_", _library.KINDS),
                                           ("HT_QUERY_", _library.MODES)])
def test_enum_mirrors_header(prefix, table):
    for name, number in table.items():
        assert re.search(r"\b%s%s = %d\b" % (prefix, name.upper(), number), header())


def test_dtypes_and_version_mirror_header():
    for name, number in (("F32", "float32"), ("BF16", "bfloat16"), ("F64", "float64")):
        assert "HT_%s = %d" % (name, _library.DTYPES[number]) in header()
    version = re.findall(r"#define HT_VERSION_\w+ (\d+)", header())
    assert ".".join(version) == _library.VERSION == htransformer.__version__


def test_statuses_mirror_header():
    numbers = {name: int(number) for name, number in re.findall(r"X\((\w+), (\d+),", header())}
    kinds = {"INVALID": ValueError, "NOMEM": MemoryError, "FORMAT": ValueError,
             "UNSUPPORTED": RuntimeError, "DEVICE": RuntimeError}
    for name, kind in kinds.items():
        assert issubclass(_library._ERROR_OF_STATUS[numbers[name]], kind)


def run(code, **environment):
    path = os.path.join(ROOT, "python")
    made = dict(os.environ, PYTHONPATH=path, **environment)
    return subprocess.run([sys.executable, "-c", code], env=made, capture_output=True, text=True)


def test_import_needs_neither_library_nor_torch():
    done = run("import sys, htransformer; assert 'torch' not in sys.modules; print('fine')",
               HTRANSFORMER_LIBRARY="/nowhere/lib.so")
    assert done.stdout == "fine\n", done.stderr


def test_named_library_that_is_missing_is_named():
    code = ("import htransformer\n"
            "try: htransformer.version()\n"
            "except htransformer.LibraryError as error: print(error)")
    done = run(code, HTRANSFORMER_LIBRARY="/nowhere/lib.so")
    assert "HTRANSFORMER_LIBRARY is '/nowhere/lib.so', which cannot be loaded" in done.stdout


def test_other_library_is_refused():
    code = ("import htransformer\n"
            "try: htransformer.version()\n"
            "except htransformer.LibraryError as error: print(error)")
    done = run(code, HTRANSFORMER_LIBRARY="libc.so.6")
    assert "libc.so.6 is not the htransformer library" in done.stdout


def test_devices_have_a_chosen_cpu():
    chosen = [device for device in htransformer.devices() if device["chosen"]]
    assert len(chosen) == 1 and chosen[0]["name"].startswith("cpu:") and chosen[0]["available"]
    assert os.path.basename(htransformer.library_path()).startswith("libhtransformer")


def test_public_names_explain_themselves():
    """dir() has them all, and each says what it is and what it takes, with types."""
    names = set(htransformer.__all__)
    assert names | {"jax", "transformers"} <= set(dir(htransformer))
    for name in sorted(names):
        try:
            found = getattr(htransformer, name)
        except AttributeError as error:
            assert "cannot be used here: No module named" in str(error)
            continue
        assert found.__doc__ and len(found.__doc__) > 10, name
        functions = [found] if inspect.isfunction(found) else [
            x for key, x in vars(found).items() if inspect.isfunction(x)
            and (key == "__init__" or not key.startswith("_"))]
        for function in functions:
            hints = [p.annotation for p in inspect.signature(function).parameters.values()
                     if p.name not in ("self", "_")]
            assert inspect.Parameter.empty not in hints, (name, function.__name__)


def test_what_is_not_installed_is_named():
    code = ("import sys\n"
            "for name in ('torch', 'jax', 'transformers'): sys.modules[name] = None\n"
            "import htransformer\n"
            "try: htransformer.HAttention\n"
            "except AttributeError as error: print(error)\n"
            "import pydoc; assert 'attention_vjp' in pydoc.render_doc(htransformer)")
    assert "htransformer.HAttention cannot be used here: " in run(code).stdout
