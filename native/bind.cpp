/* Everything that Python sees of the native code. Arguments are checked here, once; kernels and regions trust them. The
 * parts in native/bind are one translation unit with this file. */
#include "bind/attention.h"
#include "bind/experts.h"
#include "bind/machine.h"
#include "bind/norm.h"
#include "bind/recurrent.h"
#include "bind/rows.h"
#include "bind/tensors.h"
#include "bind/weights.h"

using namespace colibri;

NB_MODULE(_native, m) {
    bind_machine(m);
    bind_tensor(m);
    bind_norm(m);
    bind_weights(m);
    bind_attention(m);
    bind_recurrent(m);
    bind_rows(m);
    bind_experts(m);
}
