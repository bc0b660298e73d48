"""What is typed after ``answer``: ids with values, or one value."""

from __future__ import annotations

import pytest

from surehand.cli.steering import given
from surehand.process.exits import WrongUse

ASKED = {"why.1", "pay/why.1"}


@pytest.mark.parametrize(
    ("typed", "sent"),
    [
        (["sent twice"], {"answer": "sent twice"}),
        (["a=b"], {"answer": "a=b"}),
        (["7"], {"answer": 7}),
        (["why.1=yes"], {"answers": {"why.1": "yes"}}),
        (["pay/why.1=because", "why.1=[1]"], {"answers": {"pay/why.1": "because", "why.1": [1]}}),
    ],
)
def test_an_answer_is_for_the_question_that_it_names_or_the_only_one(
    typed: list[str], sent: dict[str, object]
) -> None:
    assert given(typed, ASKED) == sent


@pytest.mark.parametrize("typed", ["whi.1=yes", "why.2=yes", "pay/whi.1=yes", "ship[0].1=yes"])
def test_an_id_of_no_question_is_no_value_of_another_one(typed: str) -> None:
    with pytest.raises(WrongUse, match="does not begin with the id of a question"):
        given([typed], ASKED)
