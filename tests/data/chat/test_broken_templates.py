"""Templates that cannot say where answers are, each refused with what is wrong and an example."""

from __future__ import annotations

import concurrent.futures
import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime

import pytest

from dovetail.config import ConfigError
from dovetail.data import ByteTokenizer
from dovetail.data.chat import ChatEncoder, ChatTemplate, ChatTemplateError, RenderLimits

TOKENS = {"bos_token": "<s>", "eos_token": "<|im_end|>"}
GOOD = """
{%- for message in messages %}{{ '<|im_start|>' ~ message.role ~ '\\n' }}{{ message.content }}
{{- '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
WITH_BLOCK = """
{%- for message in messages %}
{%- if message.role == 'assistant' %}{{ '<|im_start|>assistant\\n' }}
{%- generation %}{{ message.content ~ '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}
{%- else %}{{ '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""


@dataclass(frozen=True)
class Broken:
    """A template made from a good one by a replacement, and its error."""

    message: str
    old: str
    new: str
    of: str = GOOD


FOREVER = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLING = """{% set n = namespace(x='a') %}
{%- for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}"""
END_LAST = "{% if loop.last or message.role == 'user' %}<|im_end|>{% endif %}\n{% endfor %}"

BROKEN = {
    "not separable": Broken(
        r"another prompt than before the answer; after '.*<\|im_start\|>' the prompt goes on with "
        r"'assistant\\n', the rendering with the answer with 'model\\n",
        "~ message.role",
        "~ (message.role if message.role == 'user' else 'model')",
    ),
    "prompt with more": Broken(
        r"goes on with '<think>', .* has what the assistant's turn has not",
        "assistant\\n",
        "assistant\\n<think>",
    ),
    "drops the assistant": Broken(
        "drops the assistant's turn: of the answer 'qwzanswered' it renders",
        "in messages",
        "in messages if message.role != 'assistant'",
    ),
    "drops the user": Broken(
        "drops the user's turn", "in messages", "in messages if message.role != 'user'"
    ),
    "end on the last turn": Broken(
        r"writes the end-of-turn token '<\|im_end\|>' after the last answer alone; an earlier one "
        r"is followed by '\\n<\|im_start\|>user",
        "{{- '<|im_end|>\\n' }}{% endfor %}",
        END_LAST,
    ),
    "no end": Broken(
        r"no end-of-turn token, so .*>>>qwzanswered\\n<<<.*Let it write eos_token", "<|im_end|>", ""
    ),
    "trimmed": Broken(
        r"puts '\\n' between the generation prompt and the answer, .*assistant>>>\\nqwzanswered",
        GOOD,
        "{% set text %}" + GOOD + "{% endset %}{{ text | trim }}",
    ),
    "answer before the prompt": Broken(
        "puts the answer before its prompt", "in messages", "in messages | reverse"
    ),
    "no generation prompt": Broken(
        r"ignores add_generation_prompt, so the answer would begin with '<\|im_start\|>assistant"
        r"\\n': .*>>><\|im_start\|>assistant\\nqwzanswered.*Add to its end",
        "if add_generation_prompt",
        "if false",
    ),
    "forgets": Broken(
        "drops an answer as soon as another question follows",
        "{{ message.content }}",
        "{{ message.content if message.role == 'user' or loop.last }}",
    ),
    "for ever": Broken("did not end within RenderLimits.seconds = 0.5", GOOD, FOREVER),
    "too long": Broken(
        "wrote more than 100000 characters", "{{ message.content }}", "{{ 'a' * 99999 }}"
    ),
    "much memory": Broken(
        "more memory than RenderLimits.megabytes = 300", GOOD, "{{ 'a' * 10**10 }}"
    ),
    "much memory by doubling": Broken("more memory|did not end", GOOD, DOUBLING),
    "internals": Broken(
        "reaches for Python's internals.*'__class__'", GOOD, "{{ ''.__class__.__mro__ }}"
    ),
    "internals of a global": Broken(
        "reaches for Python's internals", GOOD, "{{ namespace.__init__.__globals__ }}"
    ),
    "internals by format": Broken(
        "reaches for Python's internals", GOOD, "{{ '{0.__class__.__base__}'.format(messages) }}"
    ),
    "internals by an attribute filter": Broken(
        "reaches for Python's internals|drops|cannot render", GOOD, "{{ ''|attr('__class__') }}"
    ),
    "changes the messages": Broken(
        "reaches for Python's internals", GOOD, "{{ messages.append(1) }}"
    ),
    "not Jinja": Broken(r"not valid Jinja, line 3: ", "endfor", "endwhile"),
    "an error of its own": Broken(
        "cannot render a question.*'nothing' is undefined", GOOD, "{{ nothing.a }}"
    ),
    "refuses all": Broken(
        "cannot render a question.*no chat", GOOD, "{{ raise_exception('no chat') }}"
    ),
    "reads the clock": Broken(
        "writes today's date .* ChatTemplate\\(..., now=", "user", "{{ strftime_now('%Y') }}"
    ),
    "block around no answer": Broken(
        "block is around no answer, so nothing",
        "{%- generation %}{{ message.content ~ '<|im_end|>' }}{% endgeneration %}",
        "{{- message.content ~ '<|im_end|>' }}{% generation %}{% endgeneration %}",
        WITH_BLOCK,
    ),
    "block one too early": Broken(
        r"begins -1 characters from the end of the generation prompt: .*assistant>>>\\nqwzanswered",
        "assistant\\n' }}\n{%- generation %}{{ ",
        "assistant' }}\n{%- generation %}{{ '\\n' ~ ",
        WITH_BLOCK,
    ),
    "block one too late": Broken(
        r"begins \+1 characters .*assistant\\nq>>>wzanswered",
        "{%- generation %}{{ message.content",
        "{{- message.content[0] }}{% generation %}{{ message.content[1:]",
        WITH_BLOCK,
    ),
    "block without the end": Broken(
        r"block misses the end-of-turn token '<\|im_end\|>': .*>>>qwzanswered<<<",
        " ~ '<|im_end|>' }}{% endgeneration %}{{ '",
        " }}{% endgeneration %}{{ '<|im_end|>",
        WITH_BLOCK,
    ),
    "block around the user": Broken(
        "block covers a turn of the user: ",
        "~ message.content ~ '<|im_end|>\\n' }}",
        "}}{% generation %}{{ message.content ~ '<|im_end|>\\n' }}{% endgeneration %}",
        WITH_BLOCK,
    ),
    "block in a macro": Broken(
        "is not where the block is: .* inside of a macro",
        WITH_BLOCK,
        "{% set text %}" + WITH_BLOCK + "{% endset %}{{ text }}",
        WITH_BLOCK,
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_template_is_refused(name: str) -> None:
    broken = BROKEN[name]
    text = broken.of.replace(broken.old, broken.new)
    if name == "reads the clock":
        text = GOOD + "{{ strftime_now('%Y') }}"
    assert text != broken.of
    limits = RenderLimits(seconds=0.5, characters=100_000, megabytes=300)
    template = ChatTemplate(text, TOKENS, limits=limits)
    with pytest.raises(ChatTemplateError, match=re.compile(broken.message, re.DOTALL)):
        ChatEncoder(template, ByteTokenizer.Config().build())


@pytest.mark.parametrize("text", [GOOD, WITH_BLOCK])
def test_the_good_ones_are_not(text: str) -> None:
    encoder = ChatEncoder(ChatTemplate(text, TOKENS), ByteTokenizer.Config().build())
    (example,) = encoder.encode({"prompt": "a", "completion": "b"})
    assert example.show() == (
        r"<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n>>>b<|im_end|><<<\n"
    )


def test_the_next_template_is_rendered_after_one_that_ended_the_process() -> None:
    limits = RenderLimits(seconds=0.2)
    for _ in range(2):
        with pytest.raises(ChatTemplateError, match="did not end"):
            ChatTemplate(FOREVER, limits=limits).render([])
        assert ChatTemplate("{{ messages[0].content }}").render([{"content": "é😀"}]) == "é😀"


def test_a_missing_jinja2_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from dovetail.data.chat import renderer

    monkeypatch.setattr(renderer.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(renderer, "shared_renderer", renderer.Renderer())
    with pytest.raises(ConfigError, match="pip install 'jinja2"):
        renderer.shared_renderer.render(renderer.RenderRequest("", {}, []), RenderLimits(), None)


FORK = """
import os
from dovetail.data.chat import ChatTemplate
template = ChatTemplate("{{ messages[0].content }}")
assert template.render([{"content": "parent"}]) == "parent"
if os.fork() == 0:
    print(template.render([{"content": "child"}]), flush=True)
    os._exit(0)
os.wait()
print(template.render([{"content": "parent"}]))
"""


def test_a_forked_process_starts_its_own() -> None:
    command = [sys.executable, "-c", FORK]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (found.stdout, found.stderr) == ("child\nparent\n", "")


def test_threads_share_the_process() -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: template.render([{"content": str(n)}]), range(50)))
    assert found == [str(n) for n in range(50)]


def test_what_a_template_has() -> None:
    """What a template may do: transformers gives it the same, and no more."""
    text = "{{ dict(a=1).a }}{{ dict.fromkeys('ab')|length }}{% set n = namespace(a=2) %}{{ n.a }}"
    text += "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    text += "{{ {'é<': [1]} | tojson }}{{ strftime_now('%Y') }}"
    assert ChatTemplate(text, now=datetime(2031, 1, 1)).render([]) == '12201{"é<": [1]}2031'
    with pytest.raises(ChatTemplateError, match="namespace cannot store '_a'"):
        ChatTemplate("{% set n = namespace(_a=2) %}").render([])
