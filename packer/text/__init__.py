"""Text and chats to tokens and labels; `tokenizers` is imported on use, `transformers` only if it is needed.

text_encoder.py          records to tokens and labels, batch by batch: the way through all others
text_columns.py          columns that hold a text, a prompt and its completion, a conversation, or a preference pair
conversations.py         records to conversations, checked; messages that are context only
preference_pairs.py      preference pairs to two texts or conversations, and to answers that begin at one token
rendering.py             conversations to text, by a chat template
template_environment.py  chat templates, compiled as transformers does
chat_template.py         where messages end in the rendered text, and what the assistant wrote (`ChatTemplate.locate`):
                         the method by renderings of a chat's beginnings, and all refusals
turn_ends.py             what a template appends after the last message, and the tokens that end answers
message_marks.py         a shortcut: one rendering, with marks after each message and around {% generation %} tags
tokens.py                texts to tokens, and the tokens at which given characters begin
fast_tokens.py           the same tokens by gigatoken, which is compared with the library all the time
tokenizer.py             a tokenizer, with transformers or without
load_tokenizer.py        tokenizers by path or Hub id: by their files, or by transformers
"""
