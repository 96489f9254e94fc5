"""How uploads become fewer bytes: codecs, named by words such as ``int8`` or ``topk:0.05+int8+zlib``.

A codec has up to three parts, joined with ``+``::

    which numbers cross    topk:FRACTION, threshold:MAGNITUDE, sparse (the zeros are left out, nothing is lost)
    in what form           float16, bfloat16, int8, int4
    packed                 zlib

The run says the words to both sides, so the bytes say nothing about themselves that is believed: a receiver checks
every length, index, scale and number against what was declared.  Nothing here does I/O or knows an algorithm.
"""

from edgepfl.coding.upload import Coding, Encoded, Size
from edgepfl.coding.words import Codec, Numbers, codec_of

__all__ = ["Codec", "Coding", "Encoded", "Numbers", "Size", "codec_of"]
