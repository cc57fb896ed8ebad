"""Functions of MLIR files become HLO texts with their shardings."""

from pathlib import Path

from tools.spmd_texts.texts import texts_in

MLIR = """
sdy.mesh @mesh = <["a"=2, "b"=2]>
func.func @called(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.negate %arg0 : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
func.func @calling(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {"b"}]>})
    -> tensor<8x8xf32> {
  %0 = func.call @called(%arg0) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
// -----
func.func @unknown() {
  "nobody.knows"() : () -> ()
  return
}
// -----
func.func @last(%arg0: tensor<4xf32>) -> tensor<4xf32> { return %arg0 : tensor<4xf32> }
"""


def test_functions_of_mlir_are_read(tmp_path: Path) -> None:
    (tmp_path / "m.mlir").write_text(MLIR)
    first, last = texts_in(tmp_path)
    assert (first.name, last.name) == ("m/0.calling", "m/2.last")
    assert r'xla.sdy.sharding="#sdy.sharding<@mesh, [{\"a\"}, {\"b\"}]>"' in first.text
    assert "negate" in first.text
