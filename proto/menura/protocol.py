"""What an agent and a gateway hold to beside their messages."""

from typing import Final

#: of menura.v1; an agent's Hello names it. 2: positions are kind, text and token;
#: 3: values in events are literals of menura.types; 4: large messages in parts, credit in bytes before compression; 5:
#: keys say how texts compare, without a server's words; 6: a cartography may say
#: differences, the control plane configures sources; 7: chunks may be digests; 8: digests of
#: buckets, and of rows that differed; 9: a dump with a focus reads ranges of a key alone;
#: 10: texts of one length may travel split; 11: ranges of keys have kinds;
#: 12: an agent says its version, and is given another one; 13: frames of rows may be LZ4
PROTOCOL_VERSION: Final = 13
#: the oldest that a gateway takes, so that gateways are upgraded before their agents and both versions stream meanwhile
LEAST_PROTOCOL_VERSION: Final = 11
