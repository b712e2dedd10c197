#include "base/dtype.h"

#include <strings.h>

static const struct dtype_info infos[] = {
    {DT_F32, "f32", 1, 4},         {DT_F16, "f16", 1, 2},           {DT_Q4_0, "q4_0", 32, 18},
    {DT_Q4_1, "q4_1", 32, 20},     {DT_Q5_0, "q5_0", 32, 22},       {DT_Q5_1, "q5_1", 32, 24},
    {DT_Q8_0, "q8_0", 32, 34},     {DT_Q2_K, "q2_K", 256, 84},      {DT_Q3_K, "q3_K", 256, 110},
    {DT_Q4_K, "q4_K", 256, 144},   {DT_Q5_K, "q5_K", 256, 176},     {DT_Q6_K, "q6_K", 256, 210},
    {DT_IQ4_NL, "iq4_nl", 32, 18}, {DT_IQ4_XS, "iq4_xs", 256, 136}, {DT_BF16, "bf16", 1, 2},
    {DT_MXFP4, "mxfp4", 32, 17},
};

const struct dtype_info *dtype_info(uint32_t id)
{
    for (size_t i = 0; i < COUNT_OF(infos); i++)
        if ((uint32_t)infos[i].type == id)
            return &infos[i];
    return NULL;
}

const struct dtype_info *dtype_by_name(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(infos); i++)
        if (!strcasecmp(infos[i].name, name))
            return &infos[i];
    return NULL;
}
