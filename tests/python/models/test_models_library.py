"""The structs of the models' part of the package against its public header."""
import os
import re

import pytest

from htransformer import _models_library
from test_library import ROOT, TYPES

STRUCTS = {"ht_rows_desc": "RowsDesc", "ht_batch": "Batch", "ht_data_desc": "DataDesc",
           "ht_data_info": "DataInfo", "ht_key_info": "KeyInfo", "ht_tensor_info": "TensorInfo",
           "ht_linear_info": "LinearInfo", "ht_generator_desc": "GeneratorDesc",
           "ht_sampling": "Sampling", "ht_trainer_desc": "TrainerDesc", "ht_report": "Report",
           "ht_resume_info": "ResumeInfo", "ht_event": "Event", "ht_train_desc": "TrainDesc"}
POINTERS = {"ht_rows_desc": "LP_RowsDesc", "ht_report": "LP_Report", "char": "c_char_p"}
PLAIN = dict(TYPES, char="c_char", **dict.fromkeys(
    ("ht_rows_kind", "ht_header", "ht_part", "ht_key_kind", "ht_key_owner"), "c_int"))


def header():
    with open(os.path.join(ROOT, "include", "htransformer_models.h")) as file:
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", file.read(), flags=re.S)
    text = text.replace("const char *const *", "void *")
    return re.sub(r"int \(\*(\w+)\)\([^;]*\);", r"function *\1;", text)  # a callback


def fields(name):
    """(field, the kind that it should have) of a struct in the header."""
    body = re.search(r"typedef struct %s \{(.*?)\n\} %s;" % (name, name), header(), re.S).group(1)
    for line in filter(None, (" ".join(part.split()) for part in body.split(";"))):
        kind, first = re.fullmatch(r"(?:const )?(\w+) (.*)", line).groups()
        for one in first.split(","):
            star, field, count = re.fullmatch(r" ?(\*?)(\w+)(?:\[(\d+)\])?", one).groups()
            if star:
                yield field, POINTERS.get(kind, "c_void_p")
            else:
                yield field, PLAIN[kind] + ("_Array_" + count if count else "")


@pytest.mark.parametrize("name", sorted(STRUCTS))
def test_struct_mirrors_header(name):
    ours = [(field, kind.__name__) for field, kind in
            getattr(_models_library, STRUCTS[name])._fields_]
    # a callback that is used has a type of its own
    ours = [(f, "c_void_p" if kind == "CFunctionType" else kind) for f, kind in ours]
    assert ours == list(fields(name))


def test_functions_are_in_the_header():
    for name, (_, arguments) in _models_library._FUNCTIONS.items():
        found = re.search(r"\b%s\(([^;]*)\);" % name, header())
        assert found, name
        words = found.group(1).replace("void", "", found.group(1) == "void").split(",")
        assert len([word for word in words if word]) == len(arguments), name


@pytest.mark.parametrize("table, prefix", [("PARTS", "HT_PART_"), ("ROWS", "HT_ROWS_"),
                                           ("HEADERS", "HT_HEADER_")])
def test_enums_are_in_their_order(table, prefix):
    names = re.findall(r"\b%s([A-Z]+)\b(?= *(?:=|,|\n| \}))" % prefix, header())
    assert [name.lower() for name in names] == list(getattr(_models_library, table))
