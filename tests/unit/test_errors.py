import pytest

from maskwitness.errors import (
    ConfigError,
    GeometryError,
    InputError,
    MaskwitnessError,
    StoreError,
    explain,
)


@pytest.mark.parametrize("kind", [InputError, ConfigError, GeometryError, StoreError])
def test_every_error_a_user_can_put_right_is_of_one_family(kind):
    assert issubclass(kind, MaskwitnessError)
    assert str(kind("the mask is empty")) == "the mask is empty"
    assert kind.__mro__[1] is MaskwitnessError


def test_the_kinds_are_not_each_other():
    kinds = (InputError, ConfigError, GeometryError, StoreError)
    for one in kinds:
        assert [issubclass(one, other) for other in kinds].count(True) == 1


def test_a_message_of_several_parts_is_one_line():
    assert str(InputError("case_3", 4, "is gone")) == "case_3 4 is gone"


def test_notes_follow_the_message_on_lines_of_their_own():
    error = GeometryError("point 17 has no tangent")
    assert explain(error) == "point 17 has no tangent"
    error.add_note("while tracing scan 'case_012'")
    error.add_note("in /data")
    assert explain(error) == "point 17 has no tangent\nwhile tracing scan 'case_012'\nin /data"


def test_an_error_without_words_is_named_by_its_type():
    assert explain(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert explain(InputError()) == "InputError"
