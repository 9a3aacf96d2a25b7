"""What tasks have in common, by name: an option that means something for some tasks says which trait it wants.

A task lists its traits (tasks/kinds.py), an option those that make it useful (`wants=(PAIRS,)`); neither knows the other.
"""

PAIRS = "pairs"  # a source and a target: an encoder, and a decoder that reads it
ENCODER = "encoder"  # the model has an encoder
DECODER = "decoder"  # the model has a decoder
ENCODER_ONLY = "encoder only"
DECODER_ONLY = "decoder only"
WRITES = "writes"  # the model writes text token by token
BLOCKS = "blocks"  # data is a running text, cut into blocks
MASKS = "masks"  # words are hidden and guessed
CLASSES = "classes"  # sentences have classes or numbers
