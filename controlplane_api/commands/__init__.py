"""The commands, one module per extra that they need: `menura gateway` runs without the API's packages."""
