"""What the runtime says to a model in the user's place, so that a bad reply is mended."""

from contracts.messages import Message

# A run's transcript keeps these, and `is_hint` knows them by their words: a changed text is no hint in older ones.
EMPTY_REPLY_HINT = "Your last reply was empty. Answer in words, or call one of the tools."
OUTPUT_HINT = "Your last answer does not match the schema it must match. Answer again, with nothing but the JSON.\n"


def is_hint(message: Message) -> bool:
    """Whether this is what the runtime writes to correct a reply, and says nothing that a caller could have meant: a
    caller's own words may begin like a hint."""
    return message.role == "user" and (message.text == EMPTY_REPLY_HINT or message.text.startswith(OUTPUT_HINT))
