"""The project stays small enough to be read whole, what chapters show small enough to be shown."""

import pytest

from sizes import LONGEST, MOST, definitions, lines_in


@pytest.mark.parametrize("folder", MOST)
def test_folder_is_short_enough(folder):
    assert 0 < lines_in(folder) <= MOST[folder]


@pytest.mark.parametrize("name", LONGEST)
def test_definition_is_short_enough(name):
    (found,) = [lines for known, lines in definitions() if known == name]
    assert 0 < found <= LONGEST[name]
