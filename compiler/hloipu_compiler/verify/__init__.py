"""The verifier: XLA's HLO verifier's rules, beyond what reading checks.

Source: openxla/xla `xla/service/hlo_verifier.cc` with its default options: layouts are not
compared, floats of different formats do not mix, deadlocks of send and recv are not looked for.
`verifier.faults_of` returns every fault in text order, `verifier.verify` raises them.

Invariants, by the file that holds them:

verifier       * operands stand earlier in the same computation
               * the declared shape is compatible with what the operation gives (`inference`:
                 operand kinds and types, no implicit broadcast, no mixed float formats, dimension
                 numbers, windows, reducers, callees' parameters and results, group sizes,
                 `output_to_operand_aliasing`, layout constraints of custom calls)
names          * instruction names are unique in a computation, computation names in the module
parameters     * parameters are numbered 0 to n-1, each once
               * `entry_computation_layout` agrees in number, types and sizes
layouts        * layouts of the entry's interface are permutations with sound tiles and splits
calls          * no computation reaches itself; every callee exists
               * callees of fusion, while and conditional run on their caller's thread
               * a composite call has a name, and a version that is a number
fusions        * a fused computation belongs to one fusion, and the entry to none
               * its root has no users, everything else has some or a side effect
control        * control predecessors are in the same computation
               * control and data edges have no cycle
               * in a schedule, control predecessors come first
collectives    * groups name 0 to n-1 once each, none is empty, n is the number of participants
               * groups are equally large, but for all-reduce
               * global device ids need a channel and groups; an all-reduce's channel is positive
               * sources and targets of a permute are unique and in range
               * all all-reduces constrain layouts, or none
asynchronous   * a start or update has one user, its done or update, and a done one operand
               * an async computation has one start, and on the main thread one operation
channels       * send and recv agree with their dones in channel and kind
               * host transfers on one channel have one opcode and one shape
sharding       * tiles fit the rank, elements the leaves, devices the partitions
               * loops, branches and their computations agree where they say anything
aliases        * aliases and donors name arrays that exist, and no parameter's leaf twice
               * what must alias has one shape and layout
origins        * an origin has the leaves of its shape
buffers        * buffers are pinned, passed on by aliasing with one writer each, and unpinned

Differences from XLA, on purpose:

* A size without bound (`?`) is accepted; `static` says that such a module cannot be compiled.
* What XLA's verifier dies of (a tiling of a token) is a fault.
* A wrong result shape of after-all, send, send-done, recv-done, outfeed or add-dependency is a
  fault; XLA's parser puts the right one in its place.
* Lists that need one dimension have one; XLA reads the first. Negative dimensions and FFT lengths
  are faults everywhere; XLA lets some pass.
* A bitcast that changes the number of bytes is a fault; XLA looks only where layouts count.
* From newer versions: updates may bind further operands of an async operation, and async
  computations on other threads may hold any number of operations.
* Dumps from before June 2018 have infeeds, outfeeds, sends and recvs without tokens.
"""
