#include "state_settings.h"

#include "llama-context.h"
#include "llama-cparams.h"

#include <cstdio>

int32_t llama_state_settings(const llama_context * ctx, char * buf, size_t size) {
    const llama_cparams & p = ctx->get_cparams();
    // %a: every bit of a float, the same text on every machine
    return snprintf(buf, size,
        "rope_freq_base=%a\nrope_freq_scale=%a\nrope_scaling=%d\nn_ctx_orig_yarn=%u\n"
        "yarn_ext_factor=%a\nyarn_attn_factor=%a\nyarn_beta_fast=%a\nyarn_beta_slow=%a\n"
        "causal_attn=%d\nflash_attn=%d\nctx_type=%d\nnextn_layer_offset=%d\n",
        p.rope_freq_base, p.rope_freq_scale, p.rope_scaling_type, p.n_ctx_orig_yarn,
        p.yarn_ext_factor, p.yarn_attn_factor, p.yarn_beta_fast, p.yarn_beta_slow,
        p.causal_attn, p.flash_attn, p.ctx_type, p.nextn_layer_offset);
}
