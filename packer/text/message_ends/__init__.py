"""Where each message of a chat ends in its rendering, and which characters of it the assistant wrote.

`ChatTemplate.locate` is the only entry. docs/how-to/chat-templates.md explains the problem and the methods.

chat_template.py        the method by renderings of a chat's beginnings, and all refusals
turn_ends.py            what a template appends after the last message, and the tokens that end answers
message_marks.py        a shortcut: one rendering, with marks after each message and around {% generation %} tags
"""

from packer.text.message_ends.chat_template import ChatTemplate

__all__ = ["ChatTemplate"]
