"""Lazy packages: every listed name is there, and an unknown one is an ordinary error."""

import importlib

import pytest

import dovetail.runtime


def test_every_name_is_where_it_is_listed():
    package = dovetail.runtime
    listed = {name: module for module, names in package._MODULES.items() for name in names}
    assert sorted(listed) == sorted(package.__all__)
    for name, module in listed.items():
        assert getattr(package, name) is getattr(importlib.import_module(module), name)
    assert set(listed) <= set(dir(package))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"module 'dovetail.runtime' has no attribute 'Suny'"):
        _ = dovetail.runtime.Suny
