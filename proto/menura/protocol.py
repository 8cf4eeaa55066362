"""What an agent and a gateway hold to beside their messages."""

from typing import Final

#: of menura.v1; an agent's Hello names it, and a gateway refuses any other. 2: positions are kind, text and token;
#: 3: values in events are literals of menura.types; 4: large messages in parts, credit in bytes before compression; 5:
#: keys say how texts compare, without a server's words; 6: a cartography may say
#: differences, the control plane configures sources; 7: chunks may be digests; 8: digests of
#: buckets, and of rows that differed; 9: a dump with a focus reads ranges of a key alone;
#: 10: texts of one length may travel split; 11: ranges of keys have kinds
PROTOCOL_VERSION: Final = 11
