"""What `tools/autogen` reads of rules-ng-ng's XML."""

from __future__ import annotations

import pytest

from tools.autogen.emit import licence
from tools.autogen.recipe import AutogenError
from tools.autogen.rnn import Word, parse_rnn

HEAD = '<?xml version="1.0"?><database xmlns="http://nouveau.freedesktop.org/">'
TEXT = f"""{HEAD}
<enum name="mode"><value name="ON" value="1"/><value name="OLD" value="2" variants="A5XX"/>
  <value name="ANY"/></enum>
<bitset name="shared_bits"><bitfield name="LOW" low="0" high="3"/></bitset>
<enum name="packets">
  <value name="GO" value="0x10"/><value name="OLD_GO" value="0x11" variants="A2XX-A5XX"/>
  <value name="NEW_GO" value="0x12" variants="A6XX-"/>
  <value name="SOON" value="9" variants="A7XX-"/>
</enum>
<domain name="A6XX">
  <reg32 offset="0x10" name="PLAIN"/>
  <reg32 offset="0x12" name="BITS" type="shared_bits">
    <bitfield name="MODE" pos="4" type="mode"/><bitfield name="ADDRESS" low="8" high="31" shr="8"/>
  </reg32>
  <reg64 offset="0x14" name="BASE" type="address"/>
  <reg32 offset="0x16" name="NEWER" variants="A7XX-"/>
  <array offset="0x20" name="ROWS" stride="2" length="2"><reg32 offset="1" name="REG"/></array>
  <array offset="0x30" name="BARE" stride="1" length="2"/>
</domain>
<domain name="GO">
  <reg32 offset="0" name="0"><bitfield name="COUNT" low="0" high="7"/></reg32>
  <stripe varset="chip" variants="A6XX-"><reg32 offset="1" name="1"/></stripe>
  <stripe varset="chip" variants="A4XX"><reg32 offset="2" name="2"/></stripe>
  <stripe varset="kind" variants="OTHER"><reg32 offset="3" name="3"/></stripe>
</domain>
</database>"""


def test_what_a_generation_has_is_read() -> None:
    found = parse_rnn([TEXT], 6, "A6XX", "packets")
    assert found.opcodes == {"GO": 0x10, "NEW_GO": 0x12}
    assert found.registers == [
        Word("PLAIN", 0x10, 32, {}),
        Word(
            "BITS", 0x12, 32,
            {"LOW": (0, 4, 0, ""), "MODE": (4, 1, 0, "mode"), "ADDRESS": (8, 24, 8, "")},
        ),
        Word("BASE", 0x14, 64, {}),
        Word("ROWS[0].REG", 0x21, 32, {}),
        Word("ROWS[1].REG", 0x23, 32, {}),
        Word("BARE[0]", 0x30, 32, {}),
        Word("BARE[1]", 0x31, 32, {}),
    ]  # fmt: skip
    assert found.packets == {
        "GO": [Word("0", 0, 32, {"COUNT": (0, 8, 0, "")}), Word("1", 1, 32, {})]
    }
    assert found.enumerations == {"mode": {"ON": 1}}


def test_what_is_not_there_or_there_twice_is_told() -> None:
    with pytest.raises(AutogenError, match="no domain A9XX"):
        parse_rnn([TEXT], 6, "A9XX", "packets")
    with pytest.raises(AutogenError, match="no enumeration words"):
        parse_rnn([TEXT], 6, "A6XX", "words")
    twice = TEXT.replace('name="NEWER" variants="A7XX-"', 'name="PLAIN"')
    with pytest.raises(AutogenError, match="PLAIN is at 0x10 and 0x16"):
        parse_rnn([twice], 6, "A6XX", "packets")
    with pytest.raises(AutogenError, match="reg32 PLAIN has no offset"):
        parse_rnn([TEXT.replace('offset="0x10" ', "")], 6, "A6XX", "packets")


def test_the_licence_is_the_copyright_or_the_file_that_has_it() -> None:
    text = f"{HEAD}<copyright><license>Free.</license></copyright></database>"
    assert licence(text) == "<copyright><license>Free.</license></copyright>"
    importing = f'{HEAD}<import file="freedreno_copyright.xml"/></database>'
    assert licence(importing) == '<import file="freedreno_copyright.xml"/>'
