"""The table of decoders has the fields of its class, in its types."""

from pydantic import TypeAdapter

from shardwright.frontends.configs.kinds import Kind, kinds


def test_decoders_have_the_fields_of_their_class_in_its_types():
    for name, kind in kinds().items():
        assert TypeAdapter(Kind).validate_python(vars(kind)) == kind, name
        assert len(kind.biases) == 3, name
