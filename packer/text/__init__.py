"""Convert text and chats to tokens and labels. `tokenizers` is imported when used, `transformers` only if needed.

The modules, in the order in which a record passes through them:

text_source.py           opens a source of text: its columns, and the encoder of its records
text_columns.py          columns that hold a text, a prompt and its completion, a conversation, or a preference pair
text_encoder.py          records to tokens and labels, batch by batch; calls all modules below
record_texts.py          a record to the texts or conversations of its documents
conversations.py         checked conversations, and marks for trained messages and parts
rendering.py             conversations to text, by a chat template or by a built-in one that replaces it
template_environment.py  chat templates, compiled as in transformers
chat_shapes.py           a shortcut: one rendering for all chats with the same roles
chat_template.py         text that the assistant wrote in a rendering (`ChatTemplate.locate`), and the tokens that end
                         its turns; compares renderings of a chat's beginnings, and refuses chats that stay unclear
answer_parts.py          parts of answers that are weighted differently or not trained
message_marks.py         a shortcut: one rendering, with marks after each message and around {% generation %} tags
tokenizer.py             tokenizers by path or Hub id, with transformers or without
tokens.py                texts to tokens, by the library or gigatoken; and the tokens at which given characters begin
"""
