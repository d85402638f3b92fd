import html

from dovetail.utils.html import Html, bar, frame, page, table, tag

HOSTILE = "<script>\"'&"


def test_texts_and_attributes_are_escaped_once():
    element = tag("p", HOSTILE, tag("b", "&"), title=HOSTILE, class_=None)
    assert element == (
        '<p title="&lt;script&gt;&quot;&#x27;&amp;">&lt;script&gt;&quot;&#x27;&amp;<b>&amp;</b></p>'
    )
    assert isinstance(element, Html)


def test_a_page_escapes_whatever_it_is_given():
    body = (table([(HOSTILE, HOSTILE)], header=(HOSTILE, "x")), bar([(HOSTILE, 0.5, 0)]), HOSTILE)
    text = page(HOSTILE, *body)
    assert "<script>" not in text
    assert text.count("&lt;script&gt;") == 7
    assert text.startswith("<!doctype html>")


def test_a_frame_holds_the_page_as_text():
    document = page(HOSTILE, tag("p", HOSTILE))
    element = frame(document)
    assert element.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert "<style>" not in element, "it would change the style of the notebook"
    start, end = 'srcdoc="', '" style='
    inner = element.partition(start)[2].partition(end)[0]
    assert html.unescape(inner) == document


def test_columns_of_numbers_are_marked():
    assert 'class="number"' in table([("a", "1")], numbers=(1,))
