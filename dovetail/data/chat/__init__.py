"""Chat data: conversations to token ids, with a loss on the answers alone.

A record becomes a `Conversation` (`records.py`). A `ChatTemplate` renders it as transformers does,
in a process with limits. `answers.py` finds the answers by rendering prefixes; `checks.py` refuses
a template for which that does not work. `ChatEncoder` does all of it.
"""

from dovetail.data.chat.corpus import ChatFiles
from dovetail.data.chat.encode import ChatEncoder, EncodedChat, encode_chat
from dovetail.data.chat.errors import ChatTemplateError, ConversationError
from dovetail.data.chat.records import Conversation, read_conversation
from dovetail.data.chat.renderer import RenderLimits
from dovetail.data.chat.template import ChatTemplate, load_chat_template
from dovetail.data.interfaces import BadRecord

__all__ = [
    "BadRecord",
    "ChatEncoder",
    "ChatFiles",
    "ChatTemplate",
    "ChatTemplateError",
    "Conversation",
    "ConversationError",
    "EncodedChat",
    "RenderLimits",
    "encode_chat",
    "load_chat_template",
    "read_conversation",
]
