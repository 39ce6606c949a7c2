"""Where each message of a chat ends in its rendering, and which characters of it the assistant wrote.

`ChatTemplate.locate` is the only entry. docs/how-to/chat-templates.md explains the problem and the methods.

chat_template.py        the method by renderings of a chat's beginnings, and all refusals
generation_prompts.py   what a template appends after the last message
message_marks.py        a shortcut: one rendering, by a copy of the template with a mark after each message
template_lookahead.py   which statements of a template may look at later messages, so that the shortcut would be wrong
generation_tags.py      templates that mark what the assistant writes by {% generation %}
"""

from packer.text.message_ends.chat_template import ChatTemplate, LocatedChat

__all__ = ["ChatTemplate", "LocatedChat"]
