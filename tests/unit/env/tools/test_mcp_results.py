"""A tool's result reaches the agent whole, in words or by the name of what words cannot show."""

import pytest
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from rl_agent.env.tools.mcp_results import says, text_of

PAGE = "file:///page.md"


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (TextContent(type="text", text="42"), "42"),
        (TextContent(type="text", text=""), ""),
        (
            EmbeddedResource(type="resource", resource=TextResourceContents(uri=PAGE, text="# Title")),
            "# Title",
        ),
        (EmbeddedResource(type="resource", resource=TextResourceContents(uri=PAGE, text="")), ""),
        (
            EmbeddedResource(
                type="resource", resource=BlobResourceContents(uri=PAGE, blob="aGk=", mime_type="image/x")
            ),
            f"[resource {PAGE} image/x]",
        ),
        (ResourceLink(type="resource_link", name="page", uri=PAGE), f"[link page {PAGE}]"),
        (
            ResourceLink(type="resource_link", name="page", title="A page", uri=PAGE, description="All."),
            f"[link A page {PAGE} All.]",
        ),
        (ImageContent(type="image", data="aGk=", mime_type="image/png"), "[image image/png]"),
        (AudioContent(type="audio", data="aGk=", mime_type="audio/wav"), "[audio audio/wav]"),
    ],
)
def test_a_part_of_a_result_is_shown_or_named(part, text):
    assert text_of(part) == text


@pytest.mark.parametrize(
    ("texts", "structured"),
    [
        (["42"], {"result": 42}),
        (["True"], {"result": "True"}),
        (['{"a": 1}'], {"a": 1}),
        (["1", "2"], {"result": [1, 2]}),
        (["a", "b"], {"result": ["a", "b"]}),
        (["two\nlines"], {"result": "two\nlines"}),
        ([], {"result": []}),
    ],
)
def test_texts_that_repeat_the_structured_result_say_it(texts, structured):
    assert says(texts, structured)


@pytest.mark.parametrize(
    ("texts", "structured"),
    [
        (["Found 2 rows."], {"rows": [1, 2]}),
        ([], {"rows": []}),
        (["1"], {"result": True}),
        (["42", "more"], {"result": 42}),
        (["[" * 100_000], {"a": 1}),
    ],
)
def test_a_structured_result_that_no_text_repeats_is_not_said(texts, structured):
    assert not says(texts, structured)
