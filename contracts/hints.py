"""What the runtime says to a model in the user's place, so that a bad reply is mended."""

from contracts.messages import Message

# A run's transcript keeps these, and `is_hint` knows them by how they begin: a changed text is no hint in older ones.
EMPTY_REPLY_HINT = "Your last reply was empty. Answer in words, or call one of the tools."
OUTPUT_HINT = "Your last answer does not match the schema it must match. Answer again, with nothing but the JSON.\n"


def is_hint(message: Message) -> bool:
    """Whether the runtime wrote this message to correct a reply: it is no request of the run's caller."""
    return message.role == "user" and message.text.startswith((EMPTY_REPLY_HINT, OUTPUT_HINT))
