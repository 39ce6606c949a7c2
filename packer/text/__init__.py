"""Text and chats to tokens and labels; `tokenizers` is imported on use, `transformers` only if it is needed.

The modules in the order in which a record passes through them:

text_source.py           a source of text, opened: its columns, and the encoder of its records
text_columns.py          columns that hold a text, a prompt and its completion, a conversation, or a preference pair
text_encoder.py          records to tokens and labels, batch by batch: the way through all others
record_texts.py          a record to the texts or conversations of its documents
conversations.py         conversations, checked; and marks that say which messages and parts are trained
rendering.py             conversations to text, by a chat template or a built-in one in its place
template_environment.py  chat templates, compiled as transformers does
chat_template.py         what the assistant wrote in the rendered text (`ChatTemplate.locate`), and the tokens that end
                         its turns: the method by renderings of a chat's beginnings, and all refusals
message_marks.py         a shortcut: one rendering, with marks after each message and around {% generation %} tags
tokenizer.py             tokenizers by path or Hub id, with transformers or without
tokens.py                texts to tokens, by the library or gigatoken, and the tokens at which given characters begin
"""
