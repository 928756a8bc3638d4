"""Chat templates of known families: their structure, in our own words.

`family`: how the template is known; `specials`: beginning of text, end of turn, others; `verdict`:
"" if r3l takes it, "keep" if only with earlier_reasoning=keep, else a part of the refusal.
`system`: the role of the first message's speaker if there are system words: "system", or "user" if
they join the user's message; `guide`: the role that speaks guidance.
"""

from dataclasses import dataclass
from typing import Any

_INVITE = "{% if add_generation_prompt %}{{ INVITATION }}{% endif %}"
_CHATML = ("<|endoftext|>", "<|im_end|>", ("<|im_start|>",))
_MISTRAL = ("<s>", "</s>", ("[INST]", "[/INST]"))


@dataclass(frozen=True)
class Family:
    name: str
    template: str
    specials: tuple[str, str, tuple[str, ...]]
    verdict: str = ""
    system: str = "system"
    guide: str = "system"


def _family(name: str, invitation: str, loop: str, specials: Any, *rest: str) -> Family:
    invite = _INVITE.replace("INVITATION", repr(invitation))
    return Family(name, loop + invite if invitation else loop, specials, *rest)


_ALTERNATE = (
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
)
_QWEN_TURN = "{{ '<|im_start|>' + m.role + '\n' + text + '<|im_end|>\n' }}"
_FORGET = (
    "{% set text = m.content %}{% if m.role == 'assistant' and '</think>' in text %}"
    "{% set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}"
)
_R1 = (
    "{% set ns = namespace(s='') %}{% for m in messages %}{% if m.role == 'system' %}"
    "{% set ns.s = m.content %}{% endif %}{% endfor %}{{ bos_token + ns.s }}"
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<|User|>' + m.content }}"
    "{% elif m.role == 'assistant' %}{{ '<|Assistant|>' + m.content.split('</think>')[-1]"
    " + eos_token }}{% endif %}{% endfor %}"
)

FAMILIES = (
    _family(
        "chatml", "<|im_start|>assistant\n",
        "{% for m in messages %}{% set text = m.content %}" + _QWEN_TURN + "{% endfor %}", _CHATML,
    ),
    _family(  # Qwen 2.5: words of its own where there is no system message
        "default system", "<|im_start|>assistant\n",
        "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}"
        "{% endif %}{% for m in messages %}{% set text = m.content %}" + _QWEN_TURN
        + "{% endfor %}", _CHATML,
    ),
    _family(  # Qwen 3: an empty thought in the last reply, none in earlier ones
        "empty thought", "<|im_start|>assistant\n",
        "{% for m in messages %}" + _FORGET
        + "{% if loop.last and m.role == 'assistant' %}"
        "{% set text = '<think>\n\n</think>\n\n' + text %}{% endif %}" + _QWEN_TURN
        + "{% endfor %}", _CHATML, "keep",
    ),
    _family(  # Qwen 3 Thinking
        "opened thought", "<|im_start|>assistant\n<think>\n",
        "{% for m in messages %}" + _FORGET + _QWEN_TURN + "{% endfor %}", _CHATML, "keep",
    ),
    _family(
        "r1", "<|Assistant|><think>\n", _R1,
        ("<|begin|>", "<|end|>", ("<|User|>", "<|Assistant|>")), "keep", "system", "user",
    ),
    _family(
        "llama 3", "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role +"
        " '<|end_header_id|>\n\n' + m.content|trim + '<|eot_id|>' }}{% endfor %}",
        ("<|begin_of_text|>", "<|eot_id|>", ("<|start_header_id|>", "<|end_header_id|>")),
    ),
    _family(
        "mistral 1", "",
        "{{ bos_token }}{% for m in messages %}" + _ALTERNATE
        + "{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
        "{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}",
        _MISTRAL, "", "user", "user",
    ),
    _family(  # the system message moves to the last of the user's
        "mistral 3", "",
        "{% set note, turns = '', messages %}{% if messages[0].role == 'system' %}"
        "{% set note, turns = messages[0].content + '\n\n', messages[1:] %}{% endif %}"
        "{{ bos_token }}{% for m in turns %}" + _ALTERNATE
        + "{% if m.role == 'user' %}{{ '[INST] ' + (note if loop.last else '') + m.content"
        " + '[/INST]' }}{% else %}{{ ' ' + m.content|trim + eos_token }}{% endif %}{% endfor %}",
        _MISTRAL, "", "user", "user",
    ),
    _family(
        "gemma", "<start_of_turn>model\n",
        "{{ bos_token }}{% if messages[0].role == 'system' %}"
        "{{ raise_exception('no system role') }}{% endif %}{% for m in messages %}" + _ALTERNATE
        + "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n'"
        " + m.content|trim + '<end_of_turn>\n' }}{% endfor %}",
        ("<bos>", "<end_of_turn>", ("<start_of_turn>",)), "", "user", "user",
    ),
    Family(  # it closes what invites no reply
        "phi 3",
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
        ("<s>", "<|endoftext|>", ("<|end|>", "<|user|>", "<|assistant|>", "<|system|>")),
    ),
    _family(
        "zephyr", "<|assistant|>\n",
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}"
        "{% endfor %}", ("<s>", "</s>", ()),
    ),
    _family(  # no line end after the last reply
        "olmo 2", "<|assistant|>\n",
        "{{ bos_token }}{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}"
        "{% if m.role == 'assistant' %}{{ eos_token }}{% if not loop.last %}{{ '\n' }}{% endif %}"
        "{% else %}{{ '\n' }}{% endif %}{% endfor %}", ("<|bos|>", "<|endoftext|>", ()),
    ),
    _family(
        "command r", "<|START|><|CHATBOT|>",
        "{{ bos_token }}{% for m in messages %}{{ '<|START|>' + {'user': '<|USER|>', 'system':"
        " '<|SYSTEM|>', 'assistant': '<|CHATBOT|>'}[m.role] + m.content + '<|END|>' }}"
        "{% endfor %}",
        ("<BOS>", "<|END|>", ("<|START|>", "<|USER|>", "<|SYSTEM|>", "<|CHATBOT|>")),
    ),
    _family(  # who is no user is the assistant
        "user, else assistant", "<|bot|>",
        "{% for m in messages %}{% if m.role == 'user' %}{{ '<|me|>' + m.content + '<|end|>' }}"
        "{% else %}{{ '<|bot|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}",
        ("<s>", "<|end|>", ("<|me|>", "<|bot|>")), "", "user", "user",
    ),
    _family(
        "one speaker", "<|say|>",
        "{% for m in messages %}{{ '<|say|>' + m.content + '<|end|>' }}{% endfor %}",
        ("<s>", "<|end|>", ("<|say|>",)), "writes a user's message in the same form as a reply",
    ),
    _family(  # Llama 2: a space before the end of a reply
        "llama 2", "",
        "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content +"
        " ' [/INST]' }}{% elif m.role == 'assistant' %}{{ ' ' + m.content + ' ' + eos_token }}"
        "{% endif %}{% endfor %}", _MISTRAL, "puts no special token right after",
    ),
    _family(  # GLM 4: the next speaker ends a reply
        "glm 4", "<|assistant|>",
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content }}{% endfor %}",
        ("<sop>", "<|endoftext|>", ("<|user|>", "<|assistant|>", "<|system|>")),
        "puts no special token right after",
    ),
    _family(  # gpt-oss: a channel that the invitation leaves open, another end for the last reply
        "harmony", "<|start|>assistant",
        "{% for m in messages %}{{ '<|start|>' + m.role }}"
        "{{ '<|channel|>final' if m.role == 'assistant' }}{{ '<|message|>' + m.content }}"
        "{{ '<|return|>' if loop.last and m.role == 'assistant' else '<|end|>' }}{% endfor %}",
        ("<s>", "<|return|>", ("<|end|>", "<|start|>", "<|channel|>", "<|message|>")),
        "changes earlier turns",
    ),
)  # fmt: skip
