"""Names of tools for providers of models: safe, and each leads back to its tool."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from surehand.workflows.provider_names import provider_names

NAMES = st.sets(
    st.one_of(
        st.text(st.sampled_from("ab._- é"), min_size=1, max_size=4),
        st.text(st.sampled_from("ab."), min_size=62, max_size=120),
        st.text(min_size=1, max_size=120).filter(lambda name: name.isprintable()),
    ),
    max_size=12,
)


@given(NAMES)
@example({"a.b", "a_b", "a-b", "a b"})
@example({"a" * 64, "a" * 65, "a" * 66})
def test_each_tool_has_a_safe_name_of_its_own_that_depends_on_the_set_alone(
    tools: set[str],
) -> None:
    names = provider_names(tools)

    assert set(names) == tools
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names.values())
    assert {theirs: tool for tool, theirs in names.items()} == {names[tool]: tool for tool in tools}
    assert len(set(names.values())) == len(tools)
    assert provider_names(sorted(tools, reverse=True)) == names


@given(NAMES)
def test_a_name_that_is_safe_already_stays_as_it_is(tools: set[str]) -> None:
    names = provider_names(tools)

    for tool in tools:
        if re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", tool):
            assert names[tool] == tool


def test_a_name_that_was_made_for_another_tool_is_not_given_twice() -> None:
    [made] = {provider_names(["a.b", "a_b"])["a.b"]}

    names = provider_names(["a.b", "a_b", made])

    assert (names["a_b"], names[made]) == ("a_b", made)
    assert names["a.b"] not in ("a_b", made)
